#include "tools/quantize/imatrix_file.h"

#include <cmath>
#include <cstring>
#include <span>

#include "base/error.h"
#include "gguf/file.h"

namespace tandem::tools {
namespace {

constexpr std::string_view kSums = ".in_sum2", kCounts = ".counts";

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw_error(ErrorCode::bad_file, "%s: %s", path.c_str(), what.c_str());
}

void add_entry(ImportanceMatrix& matrix, std::string_view name, std::vector<float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i]) && values[i] >= 0.0f) continue;
    fail(matrix.path, format("importance of %s: value %zu is %g, needed a finite number of 0 or more",
                             printable(name).c_str(), i, values[i]));
  }
  if (!matrix.entries.emplace(name, std::move(values)).second) {
    fail(matrix.path, format("importance of %s appears twice", printable(name).c_str()));
  }
}

std::span<const float> floats_of(const GgufFile& file, const TensorInfo& tensor) {
  if (tensor.dtype != DType::F32) {
    fail(file.path(), format("tensor %s is %s, needed F32", printable(tensor.name).c_str(),
                             std::string(dtype_name(tensor.dtype)).c_str()));
  }
  return {reinterpret_cast<const float*>(tensor.data), static_cast<size_t>(tensor.n_elements())};
}

ImportanceMatrix read_gguf(const std::string& path) {
  const GgufFile file(path, {.prefetch = false});
  ImportanceMatrix matrix{path};
  if (const auto type = file.metadata().get_optional<std::string>("general.type");
      type && *type != "imatrix") {
    file.metadata().fail("general.type", "\"" + printable(*type) + "\"", "\"imatrix\"");
  }
  if (file.metadata().has("imatrix.datasets")) {
    const auto datasets = file.metadata().get_strings("imatrix.datasets");
    if (!datasets.empty()) matrix.dataset = datasets.front();
  }
  matrix.n_chunks = file.metadata().get_or<uint32_t>("imatrix.chunk_count", 0);
  for (const TensorInfo& tensor : file.tensors()) {
    if (!tensor.name.ends_with(kSums)) continue;
    const std::string name(tensor.name.substr(0, tensor.name.size() - kSums.size()));
    const std::span<const float> sums = floats_of(file, tensor);
    const std::span<const float> counts = floats_of(file, file.tensor(name + std::string(kCounts)));
    if (sums.size() % counts.size() != 0) {
      fail(path, format("importance of %s: %zu sums for %zu counts", printable(name).c_str(), sums.size(),
                        counts.size()));
    }
    const size_t n_columns = sums.size() / counts.size();
    std::vector<float> values(sums.size());
    for (size_t i = 0; i < sums.size(); ++i) {
      const float count = counts[i / n_columns];
      values[i] = count > 0.0f ? sums[i] / count : 1.0f;
    }
    add_entry(matrix, name, std::move(values));
  }
  return matrix;
}

// i32 n_entries; n_entries times (i32 length, name, i32 n_calls, i32 n_values, f32 values[n_values]); then,
// perhaps, i32 n_chunks and (i32 length, name of the dataset).
class DatReader {
 public:
  DatReader(std::span<const std::byte> bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  bool at_end() const { return bytes_.empty(); }
  std::span<const std::byte> take(size_t n, const char* what) {
    if (n > bytes_.size()) {
      fail(path_, format("not an importance matrix: %s needs %zu bytes, found %zu left in the file", what, n,
                         bytes_.size()));
    }
    const auto taken = bytes_.first(n);
    bytes_ = bytes_.subspan(n);
    return taken;
  }
  int32_t number(const char* what, int32_t min) {
    int32_t value;
    std::memcpy(&value, take(sizeof value, what).data(), sizeof value);
    if (value < min) {
      fail(path_, format("not an importance matrix: %s is %d, needed %d or more", what, value, min));
    }
    return value;
  }
  std::string text(const char* what) {
    const auto bytes = take(static_cast<size_t>(number(what, 0)), what);
    const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return text.c_str();  // some writers count a final zero
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& path_;
};

ImportanceMatrix read_dat(std::span<const std::byte> bytes, const std::string& path) {
  ImportanceMatrix matrix{path};
  DatReader reader(bytes, path);
  const int32_t n_entries = reader.number("the number of entries", 1);
  for (int32_t i = 0; i < n_entries; ++i) {
    const std::string name = reader.text("the name of an entry");
    const int32_t n_calls = reader.number("the number of calls", 0);
    const auto n_values = static_cast<size_t>(reader.number("the number of values", 1));
    const auto raw = reader.take(n_values * sizeof(float), "the values of an entry");
    std::vector<float> values(n_values);
    std::memcpy(values.data(), raw.data(), raw.size());
    if (n_calls > 0) {
      for (float& value : values) value /= static_cast<float>(n_calls);
    }
    add_entry(matrix, name, std::move(values));
  }
  if (!reader.at_end()) matrix.n_chunks = static_cast<uint32_t>(reader.number("the number of chunks", 0));
  if (!reader.at_end()) matrix.dataset = reader.text("the name of the dataset");
  return matrix;
}

}  // namespace

const std::vector<float>* ImportanceMatrix::find(std::string_view name) const {
  const auto found = entries.find(name);
  return found == entries.end() ? nullptr : &found->second;
}

ImportanceMatrix read_imatrix(const std::string& path) {
  const MappedFile file = MappedFile::open(path, {.prefetch = false});
  const std::span<const std::byte> bytes = file.bytes();
  const bool is_gguf = bytes.size() >= 4 && std::memcmp(bytes.data(), "GGUF", 4) == 0;
  ImportanceMatrix matrix = is_gguf ? read_gguf(path) : read_dat(bytes, path);
  if (matrix.entries.empty()) fail(path, "not an importance matrix: it has no tensor NAME.in_sum2");
  return matrix;
}

}  // namespace tandem::tools
