#include "tools/convert/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/checked.h"
#include "base/error.h"
#include "tools/convert/json.h"

namespace tandem::tools {
namespace {

struct DTypeRow {
  SourceDType dtype;
  std::string_view name;
  size_t n_bytes;
};
constexpr DTypeRow kDTypes[] = {
    {SourceDType::F64, "F64", 8},   {SourceDType::F32, "F32", 4},         {SourceDType::F16, "F16", 2},
    {SourceDType::BF16, "BF16", 2}, {SourceDType::F8_E4M3, "F8_E4M3", 1}, {SourceDType::U8, "U8", 1},
    {SourceDType::I8, "I8", 1},     {SourceDType::I16, "I16", 2},         {SourceDType::U16, "U16", 2},
    {SourceDType::I32, "I32", 4},   {SourceDType::U32, "U32", 4},         {SourceDType::I64, "I64", 8},
    {SourceDType::U64, "U64", 8},   {SourceDType::boolean, "BOOL", 1}};

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kMaxDims = 8;

const DTypeRow& row_of(SourceDType dtype) {
  return *std::find_if(std::begin(kDTypes), std::end(kDTypes),
                       [&](const DTypeRow& r) { return r.dtype == dtype; });
}

SourceDType parse_dtype(const JsonObject& entry) {
  const std::string name = entry.text("dtype").value_or("");
  std::string known;
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name) return row.dtype;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  entry.fail("dtype", "\"" + printable(name, 30) + "\"", "one of: " + known);
}

std::vector<uint64_t> unsigned_array(const JsonObject& entry, const char* key) {
  const Json* value = entry.find(key);
  std::vector<uint64_t> out;
  if (!value || !value->is_array()) {
    entry.fail(key, value ? short_json(*value) : "nothing", "an array of integers");
  }
  for (const Json& x : *value) {
    if (!x.is_number_unsigned()) entry.fail(key, short_json(*value), "an array of integers, none negative");
    out.push_back(x.get<uint64_t>());
  }
  return out;
}

}  // namespace

std::string_view source_dtype_name(SourceDType dtype) {
  return row_of(dtype).name;
}
size_t source_dtype_bytes(SourceDType dtype) {
  return row_of(dtype).n_bytes;
}

int64_t SourceTensor::n_elements() const {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;  // the header check ruled out overflow
  return n;
}

std::string SourceTensor::shape_text() const {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) throw_error(ErrorCode::io, "{}: cannot open: {}", path, strerror(errno));
  try {
    struct stat status;
    if (fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
      throw_error(ErrorCode::bad_file, "{}: not a regular file", path);
    }
    const auto n_file_bytes = static_cast<uint64_t>(status.st_size);
    uint64_t n_header_bytes = 0;
    if (n_file_bytes < sizeof n_header_bytes) {
      throw_error(ErrorCode::bad_file,
                  "{}: found {}"
                  " bytes, needed at least 8",
                  path, n_file_bytes);
    }
    read(0, std::as_writable_bytes(std::span(&n_header_bytes, 1)));
    const uint64_t max = std::min(kMaxHeaderBytes, n_file_bytes - 8);
    if (n_header_bytes > max) {
      throw_error(ErrorCode::bad_file,
                  "{}: the header says it has {}"
                  " bytes, needed at most {}"
                  " (the file has {}"
                  ")",
                  path, n_header_bytes, max, n_file_bytes);
    }
    std::string header(n_header_bytes, '\0');
    read(8, std::as_writable_bytes(std::span(header)));
    parse_header(header, 8 + n_header_bytes, n_file_bytes - 8 - n_header_bytes);
  } catch (...) {
    close(fd_);
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() {
  close(fd_);
}

void SafetensorsFile::parse_header(std::string_view text, uint64_t data_start, uint64_t n_data_bytes) {
  const JsonObject header = JsonObject::parse(text, path_ + ": header");
  for (const auto& [name, value] : header.json().items()) {
    if (name == "__metadata__") continue;
    const JsonObject entry = *header.object(name);
    SourceTensor tensor{name, parse_dtype(entry), {}, this, 0, 0};
    uint64_t n_bytes = source_dtype_bytes(tensor.dtype);
    const std::vector<uint64_t> shape = unsigned_array(entry, "shape");
    if (shape.size() > kMaxDims)
      entry.fail("shape", std::to_string(shape.size()) + " dimensions", "at most 8");
    for (const uint64_t size : shape) {
      const auto product = checked_mul(n_bytes, size);
      if (!product || *product > INT64_MAX)
        entry.fail("shape", short_json(entry.json()["shape"]), "a smaller tensor");
      n_bytes = *product;
      tensor.shape.push_back(static_cast<int64_t>(size));
    }
    const std::vector<uint64_t> offsets = unsigned_array(entry, "data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > n_data_bytes) {
      entry.fail("data_offsets", short_json(entry.json()["data_offsets"]),
                 format("[begin, end] within the {}"
                        " bytes of data",
                        n_data_bytes));
    }
    if (offsets[1] - offsets[0] != n_bytes) {
      entry.fail("data_offsets",
                 format("{}"
                        " bytes",
                        offsets[1] - offsets[0]),
                 format("{}"
                        " for {} of shape {}",
                        n_bytes, source_dtype_name(tensor.dtype), tensor.shape_text()));
    }
    tensor.offset = data_start + offsets[0];
    tensor.n_bytes = n_bytes;
    tensors_.emplace(name, std::move(tensor));
  }
  check_layout(data_start, n_data_bytes);
}

// Checks that the tensors, in order of their data, fill it from the first byte to the last.
void SafetensorsFile::check_layout(uint64_t data_start, uint64_t n_data_bytes) const {
  std::vector<const SourceTensor*> order;
  for (const auto& [name, tensor] : tensors_) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const SourceTensor* a, const SourceTensor* b) {
    return std::pair(a->offset, a->n_bytes) < std::pair(b->offset, b->n_bytes);
  });
  uint64_t end = data_start;
  for (const SourceTensor* tensor : order) {
    if (tensor->offset != end) {
      throw_error(ErrorCode::bad_file,
                  "{}: tensor {}: found its data at offset {}"
                  ", needed {}"
                  ": {}",
                  path_, printable(tensor->name), tensor->offset, end,
                  tensor->offset < end ? "it overlaps another tensor" : "there is a gap before it");
    }
    end += tensor->n_bytes;
  }
  if (end != data_start + n_data_bytes) {
    throw_error(ErrorCode::bad_file,
                "{}: found {}"
                " bytes after the last tensor, needed none",
                path_, data_start + n_data_bytes - end);
  }
}

void SafetensorsFile::read(uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t n = pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      throw_error(ErrorCode::io,
                  "{}: cannot read at offset {}"
                  ": {}",
                  path_, offset, strerror(errno));
    if (n == 0)
      throw_error(ErrorCode::io,
                  "{}: the file ends at offset {}"
                  ": it was truncated while being read",
                  path_, offset);
    offset += static_cast<uint64_t>(n);
    out = out.subspan(n);
  }
}

}  // namespace tandem::tools
