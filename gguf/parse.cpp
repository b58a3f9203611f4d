#include "gguf/parse.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <set>

#include "base/checked.h"
#include "base/error.h"
#include "gguf/header.h"

namespace tandem {
namespace {

constexpr uint64_t kMinAlignment = 8;
constexpr uint64_t kMaxAlignment = uint64_t{1} << 24;
constexpr uint64_t kMaxBytes = INT64_MAX;

// Reads little-endian fields in order. `what` names the field in messages.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  uint64_t offset() const { return offset_; }
  uint64_t remaining() const { return bytes_.size() - offset_; }

  const std::byte* take(uint64_t n_bytes, const std::string& what) {
    if (n_bytes > remaining()) {
      fail(offset_,
           "{} needs {}"
           " bytes, found {}"
           " left in the file",
           what, n_bytes, remaining());
    }
    const std::byte* at = bytes_.data() + offset_;
    offset_ += n_bytes;
    return at;
  }

  template <class T>
  T number(const std::string& what) {
    T value;
    std::memcpy(&value, take(sizeof value, what), sizeof value);
    return value;
  }

  std::string_view string(const std::string& what) {
    const auto n_bytes = number<uint64_t>(what + " length");
    return {reinterpret_cast<const char*>(take(n_bytes, what)), n_bytes};
  }

  // Checks a count of items of at least `min_bytes` each against the bytes left.
  uint64_t count(uint64_t n, uint64_t min_bytes, const std::string& what) {
    if (n > remaining() / min_bytes) {
      fail(offset_,
           "{} is {}"
           ", but {}"
           " bytes left in the file hold at most {}",
           what, n, remaining(), remaining() / min_bytes);
    }
    return n;
  }

  template <class... T>
  [[noreturn]] void fail(uint64_t at, fmt::format_string<T...> text, T&&... arguments) {
    throw_error(ErrorCode::bad_file, "{}: at offset {}: {}", path_, at,
                format_text(text, fmt::make_format_args(arguments...)));
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& path_;
  uint64_t offset_ = 0;
};

void check_bools(Cursor& cursor, const std::byte* data, uint64_t n, const std::string& what) {
  for (uint64_t i = 0; i < n; ++i) {
    if (static_cast<uint8_t>(data[i]) > 1) {
      cursor.fail(cursor.offset() - n + i, "{} holds a bool of {}, needed 0 or 1", what,
                  static_cast<int>(data[i]));
    }
  }
}

ValueType read_value_type(Cursor& cursor, const std::string& what) {
  const uint64_t at = cursor.offset();
  const auto type = cursor.number<uint32_t>(what);
  if (type > static_cast<uint32_t>(ValueType::f64)) {
    cursor.fail(at,
                "{} is {}"
                ", needed 0 to 12",
                what, type);
  }
  return static_cast<ValueType>(type);
}

Value read_array(Cursor& cursor, const std::string& what) {
  const uint64_t at = cursor.offset();
  const ValueType type = read_value_type(cursor, what + " element type");
  if (type == ValueType::array) cursor.fail(at, "{} is an array of arrays, needed a flat array", what);
  const auto n = cursor.number<uint64_t>(what + " count");
  if (type != ValueType::string) {
    const uint64_t n_bytes = value_type_bytes(type);
    cursor.count(n, n_bytes, what + " count");
    const std::byte* data = cursor.take(n * n_bytes, what);
    if (type == ValueType::boolean) check_bools(cursor, data, n, what);
    return Value::array_view(type, data, n);
  }
  std::vector<std::string_view> strings(cursor.count(n, sizeof(uint64_t), what + " count"));
  const std::string element = what + " element";
  for (std::string_view& text : strings) text = cursor.string(element);
  return Value::string_array_view(std::move(strings));
}

Value read_value(Cursor& cursor, const std::string& what) {
  const ValueType type = read_value_type(cursor, what + " type");
  if (type == ValueType::string) return Value::string_view_of(cursor.string(what));
  if (type == ValueType::array) return read_array(cursor, what);
  const std::byte* data = cursor.take(value_type_bytes(type), what);
  if (type == ValueType::boolean) check_bools(cursor, data, 1, what);
  return Value::scalar_view(type, data);
}

void read_metadata(Cursor& cursor, uint64_t n_metadata, Metadata& metadata) {
  for (uint64_t i = 0; i < n_metadata; ++i) {
    const uint64_t at = cursor.offset();
    const std::string_view key = cursor.string(format("metadata key {}", i));
    if (metadata.has(key)) cursor.fail(at, "metadata key {} appears twice", printable(key));
    metadata.set(key, read_value(cursor, "metadata " + printable(key)));
  }
}

uint32_t read_version(Cursor& cursor) {
  if (std::memcmp(cursor.take(4, "the magic"), "GGUF", 4) != 0) {
    cursor.fail(0, "the magic is not \"GGUF\"; needed a GGUF file");
  }
  const auto version = cursor.number<uint32_t>("the version");
  if (version == 2 || version == 3) return version;
  if (const uint32_t swapped = __builtin_bswap32(version); swapped >= 1 && swapped <= 3) {
    cursor.fail(4,
                "this is a big-endian GGUF file (version {}"
                " byte-swapped), needed little-endian",
                swapped);
  }
  cursor.fail(4,
              "GGUF version is {}"
              ", needed 2 or 3",
              version);
}

uint64_t read_alignment(const Metadata& metadata) {
  const auto alignment = metadata.get_or<uint64_t>("general.alignment", kDefaultAlignment);
  if (alignment < kMinAlignment || alignment > kMaxAlignment || (alignment & (alignment - 1)) != 0) {
    metadata.fail("general.alignment", std::to_string(alignment),
                  format("a power of two from {}"
                         " to {}",
                         kMinAlignment, kMaxAlignment));
  }
  return alignment;
}

// Fills n_dims, dims, dtype and n_bytes.
void read_shape(Cursor& cursor, TensorInfo& tensor, const std::string& what) {
  uint64_t at = cursor.offset();
  const auto n_dims = cursor.number<uint32_t>(what + " number of dimensions");
  if (n_dims < 1 || n_dims > 4)
    cursor.fail(at,
                "{} has {}"
                " dimensions, needed 1 to 4",
                what, n_dims);
  tensor.n_dims = static_cast<int>(n_dims);
  uint64_t n_elements = 1;
  for (uint32_t d = 0; d < 4; ++d) {
    at = cursor.offset();
    const uint64_t size = d < n_dims ? cursor.number<uint64_t>(what + " dimension") : 1;
    if (size == 0 || size > kMaxBytes) {
      cursor.fail(at,
                  "{} dimension {}"
                  " is {}"
                  ", needed more than 0",
                  what, d, static_cast<int64_t>(size));
    }
    const auto product = checked_mul(n_elements, size);
    if (!product || *product > kMaxBytes) {
      cursor.fail(at,
                  "{}: the product of the dimensions overflows at dimension {}"
                  " ({}"
                  ")",
                  what, d, size);
    }
    n_elements = *product;
    tensor.dims[d] = static_cast<int64_t>(size);
  }

  at = cursor.offset();
  const auto type = cursor.number<uint32_t>(what + " type");
  const DTypeInfo* info = find_dtype(type);
  if (!info) cursor.fail(at, "{} has the unknown type {}", what, type);
  tensor.dtype = info->dtype;
  if (tensor.dims[0] % info->block_elements != 0) {
    cursor.fail(at,
                "{} has rows of {}"
                " elements, but {} needs a multiple of {}",
                what, tensor.dims[0], info->name, info->block_elements);
  }
  const auto n_bytes = checked_mul(n_elements / info->block_elements, info->block_bytes);
  if (!n_bytes || *n_bytes > kMaxBytes) cursor.fail(at, "{}: the size in bytes overflows", what);
  tensor.n_bytes = *n_bytes;
}

// Reads all of a tensor but its data; offset stays relative to the start of the data.
TensorInfo read_tensor(Cursor& cursor, uint64_t i, uint64_t alignment) {
  TensorInfo tensor{};
  tensor.name = cursor.string(format("tensor name {}", i));
  const std::string what = "tensor " + printable(tensor.name);
  read_shape(cursor, tensor, what);
  const uint64_t at = cursor.offset();
  tensor.offset = cursor.number<uint64_t>(what + " offset");
  if (tensor.offset % alignment != 0) {
    cursor.fail(at,
                "{} data offset is {}"
                ", needed a multiple of the alignment {}",
                what, tensor.offset, alignment);
  }
  return tensor;
}

void check_unique(const std::vector<TensorInfo>& tensors, const std::string& path) {
  std::set<std::string_view> names;
  for (const TensorInfo& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      throw_error(ErrorCode::bad_file, "{}: tensor {} appears twice", path, printable(tensor.name));
    }
  }
}

// Makes offsets absolute and sets data, after checking that both lie in the file.
void place_tensors(std::vector<TensorInfo>& tensors, uint64_t data_start, std::span<const std::byte> bytes,
                   const std::string& path) {
  const uint64_t n_data = data_start <= bytes.size() ? bytes.size() - data_start : 0;
  for (TensorInfo& tensor : tensors) {
    if (tensor.offset > n_data || tensor.n_bytes > n_data - tensor.offset) {
      throw_error(ErrorCode::bad_file,
                  "{}: tensor {} needs {}"
                  " bytes at data offset {}"
                  ", found {}"
                  " bytes of tensor data in the file (truncated?)",
                  path, printable(tensor.name), tensor.n_bytes, tensor.offset, n_data);
    }
    tensor.offset += data_start;
    tensor.data = bytes.data() + tensor.offset;
  }
}

void check_overlap(const std::vector<TensorInfo>& tensors, const std::string& path) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return tensors[a].offset < tensors[b].offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    const TensorInfo& before = tensors[order[i - 1]];
    const TensorInfo& after = tensors[order[i]];
    if (before.offset + before.n_bytes > after.offset) {
      throw_error(ErrorCode::bad_file, "{}: tensors {} and {} overlap at offset {}", path,
                  printable(before.name), printable(after.name), after.offset);
    }
  }
}

}  // namespace

ParsedGguf parse_gguf(std::span<const std::byte> bytes, const std::string& path) {
  Cursor cursor(bytes, path);
  ParsedGguf parsed;
  parsed.metadata = Metadata(path);
  parsed.version = read_version(cursor);
  const auto n_tensors = cursor.number<uint64_t>("the tensor count");
  const auto n_metadata = cursor.number<uint64_t>("the metadata count");
  // The smallest tensor: empty name, one dimension. The smallest pair: empty key, one byte.
  cursor.count(n_tensors, 8 + 4 + 8 + 4 + 8, "the tensor count");
  cursor.count(n_metadata, 8 + 4 + 1, "the metadata count");
  read_metadata(cursor, n_metadata, parsed.metadata);
  parsed.alignment = read_alignment(parsed.metadata);

  cursor.count(n_tensors, 8 + 4 + 8 + 4 + 8, "the tensor count");
  parsed.tensors.reserve(n_tensors);
  for (uint64_t i = 0; i < n_tensors; ++i) parsed.tensors.push_back(read_tensor(cursor, i, parsed.alignment));
  check_unique(parsed.tensors, path);
  place_tensors(parsed.tensors, align_up(cursor.offset(), parsed.alignment), bytes, path);
  check_overlap(parsed.tensors, path);
  return parsed;
}

}  // namespace tandem
