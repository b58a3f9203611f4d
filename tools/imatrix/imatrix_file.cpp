#include "tools/imatrix/imatrix_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>

#include "base/error.h"
#include "gguf/file.h"
#include "gguf/writer.h"

namespace tandem::tools {
namespace {

constexpr std::string_view kCounts = ".counts";

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw_error(ErrorCode::bad_file, "{}: {}", path, what);
}

// Of one value; 1 for an expert that the text never reached.
float mean_of(const ImportanceSums::Entry& entry, size_t i) {
  const size_t n_columns = entry.sums.size() / entry.counts.size();
  const auto count = static_cast<float>(entry.counts[i / n_columns]);
  return count > 0.0f ? entry.sums[i] / count : 1.0f;
}

void check_entry(const std::string& path, std::string_view name, const ImportanceSums::Entry& entry) {
  const auto is_sum = [](double x) { return std::isfinite(x) && x >= 0.0; };
  for (size_t m = 0; m < entry.counts.size(); ++m) {
    if (is_sum(entry.counts[m])) continue;
    fail(path, format("importance of {}: count {} is {:g}, needed a finite number of 0 or more",
                      printable(name), m, entry.counts[m]));
  }
  for (size_t i = 0; i < entry.sums.size(); ++i) {
    if (!is_sum(entry.sums[i])) {
      fail(path, format("importance of {}: value {} is {:g}, needed a finite number of 0 or more",
                        printable(name), i, entry.sums[i]));
    }
    if (!std::isfinite(mean_of(entry, i))) {
      fail(path, format("importance of {}: value {} is {:g} for too small a count", printable(name), i,
                        entry.sums[i]));
    }
  }
}

void add_entry(ImportanceSums& matrix, std::string_view name, ImportanceSums::Entry entry) {
  check_entry(matrix.path, name, entry);
  if (!matrix.entries.emplace(name, std::move(entry)).second) {
    fail(matrix.path, format("importance of {} appears twice", printable(name)));
  }
}

std::span<const float> floats_of(const GgufFile& file, const TensorInfo& tensor) {
  if (tensor.dtype != DType::F32) {
    fail(file.path(),
         format("tensor {} is {}, needed F32", printable(tensor.name), dtype_name(tensor.dtype)));
  }
  return {reinterpret_cast<const float*>(tensor.data), static_cast<size_t>(tensor.n_elements())};
}

ImportanceSums read_gguf(const std::string& path) {
  const GgufFile file(path, {.prefetch = false});
  ImportanceSums matrix{path};
  if (const auto type = file.metadata().get_optional<std::string>("general.type");
      type && *type != "imatrix") {
    file.metadata().fail("general.type", "\"" + printable(*type) + "\"", "\"imatrix\"");
  }
  if (file.metadata().has("imatrix.datasets")) {
    for (const std::string_view dataset : file.metadata().get_strings("imatrix.datasets")) {
      matrix.datasets.emplace_back(dataset);
    }
  }
  matrix.n_chunks = file.metadata().get_or<uint32_t>("imatrix.chunk_count", 0);
  matrix.chunk_size = file.metadata().get_or<uint32_t>("imatrix.chunk_size", 0);
  for (const TensorInfo& tensor : file.tensors()) {
    if (!tensor.name.ends_with(kImatrixSums)) continue;
    const std::string name(tensor.name.substr(0, tensor.name.size() - kImatrixSums.size()));
    const std::span<const float> sums = floats_of(file, tensor);
    const std::span<const float> counts = floats_of(file, file.tensor(name + std::string(kCounts)));
    if (sums.size() % counts.size() != 0) {
      fail(path,
           format("importance of {}: {} sums for {} counts", printable(name), sums.size(), counts.size()));
    }
    add_entry(matrix, name, {{sums.begin(), sums.end()}, {counts.begin(), counts.end()}});
  }
  return matrix;
}

// Layout: i32 n_entries; n_entries times (i32 length, name, i32 n_calls, i32 n_values, f32 values[n_values]);
// then, optionally, i32 n_chunks and (i32 length, name of the dataset).
class DatReader {
 public:
  DatReader(std::span<const std::byte> bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  bool at_end() const { return bytes_.empty(); }
  std::span<const std::byte> take(size_t n, const char* what) {
    if (n > bytes_.size()) {
      fail(path_, format("not an importance matrix: {} needs {} bytes, found {} left in the file", what, n,
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
      fail(path_, format("not an importance matrix: {} is {}, needed {} or more", what, value, min));
    }
    return value;
  }
  std::string text(const char* what) {
    const auto bytes = take(static_cast<size_t>(number(what, 0)), what);
    const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return text.c_str();  // drops a final zero, which some writers count
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& path_;
};

ImportanceSums read_dat(std::span<const std::byte> bytes, const std::string& path, uint32_t chunk_size) {
  ImportanceSums matrix{path};
  matrix.chunk_size = chunk_size;
  DatReader reader(bytes, path);
  const int32_t n_entries = reader.number("the number of entries", 1);
  for (int32_t i = 0; i < n_entries; ++i) {
    const std::string name = reader.text("the name of an entry");
    const int32_t n_calls = std::max(1, reader.number("the number of calls", 0));
    const auto n_values = static_cast<size_t>(reader.number("the number of values", 1));
    const auto raw = reader.take(n_values * sizeof(float), "the values of an entry");
    ImportanceSums::Entry entry{std::vector<float>(n_values), {static_cast<double>(n_calls) * chunk_size}};
    std::memcpy(entry.sums.data(), raw.data(), raw.size());
    for (float& sum : entry.sums) sum *= static_cast<float>(chunk_size);
    add_entry(matrix, name, std::move(entry));
  }
  if (!reader.at_end()) matrix.n_chunks = static_cast<uint32_t>(reader.number("the number of chunks", 0));
  if (!reader.at_end()) matrix.datasets.push_back(reader.text("the name of the dataset"));
  return matrix;
}

std::vector<float> means_of(const ImportanceSums::Entry& entry) {
  std::vector<float> means(entry.sums.size());
  for (size_t i = 0; i < means.size(); ++i) means[i] = mean_of(entry, i);
  return means;
}

}  // namespace

void ImportanceSums::merge(const ImportanceSums& other) {
  for (const auto& [name, entry] : other.entries) {
    const auto [mine, is_new] = entries.emplace(name, entry);
    if (is_new) continue;
    Entry& sum = mine->second;
    if (sum.sums.size() != entry.sums.size()) {
      fail(other.path, format("importance of {}: found {} values, needed {} as before", printable(name),
                              entry.sums.size(), sum.sums.size()));
    }
    // Older files have one count for all experts; it applies to each.
    const size_t n_mat = std::max(sum.counts.size(), entry.counts.size());
    if (sum.counts.size() == 1) sum.counts.resize(n_mat, sum.counts[0]);
    if (n_mat % entry.counts.size() != 0 || sum.counts.size() != n_mat) {
      fail(other.path, format("importance of {}: found {} counts, needed {} as before", printable(name),
                              entry.counts.size(), sum.counts.size()));
    }
    for (size_t i = 0; i < sum.sums.size(); ++i) sum.sums[i] += entry.sums[i];
    for (size_t i = 0; i < n_mat; ++i) sum.counts[i] += entry.counts[entry.counts.size() > 1 ? i : 0];
    check_entry(other.path, name, sum);  // a sum of two finite numbers may be infinite
  }
  for (const std::string& dataset : other.datasets) {
    if (std::find(datasets.begin(), datasets.end(), dataset) == datasets.end()) datasets.push_back(dataset);
  }
  n_chunks += other.n_chunks;
  if (chunk_size == 0) chunk_size = other.chunk_size;
}

const std::vector<float>* ImportanceMatrix::find(std::string_view name) const {
  const auto found = entries.find(name);
  return found == entries.end() ? nullptr : &found->second;
}

ImportanceSums read_imatrix_sums(const std::string& path, uint32_t chunk_size) {
  const MappedFile file = MappedFile::open(path, {.prefetch = false});
  const std::span<const std::byte> bytes = file.bytes();
  const bool is_gguf = bytes.size() >= 4 && std::memcmp(bytes.data(), "GGUF", 4) == 0;
  ImportanceSums matrix = is_gguf ? read_gguf(path) : read_dat(bytes, path, chunk_size);
  if (matrix.entries.empty()) fail(path, "not an importance matrix: it has no tensor NAME.in_sum2");
  return matrix;
}

ImportanceMatrix read_imatrix(const std::string& path) {
  const ImportanceSums sums = read_imatrix_sums(path);
  ImportanceMatrix matrix{path, sums.datasets.empty() ? "" : sums.datasets.front(), sums.n_chunks};
  for (const auto& [name, entry] : sums.entries) matrix.entries.emplace(name, means_of(entry));
  return matrix;
}

void write_imatrix(const ImportanceSums& sums, const std::string& path) {
  GgufWriter writer(path);
  Metadata& metadata = writer.metadata();
  metadata.set("general.type", Value("imatrix"));
  metadata.set("imatrix.datasets", Value(sums.datasets));
  metadata.set("imatrix.chunk_count", Value(sums.n_chunks));
  metadata.set("imatrix.chunk_size", Value(sums.chunk_size));
  for (const auto& [name, entry] : sums.entries) {
    const auto n_mat = static_cast<int64_t>(entry.counts.size());
    const auto n_columns = static_cast<int64_t>(entry.sums.size()) / n_mat;
    writer.add_tensor(name + std::string(kImatrixSums), DType::F32, std::array{n_columns, n_mat});
    writer.add_tensor(name + std::string(kCounts), DType::F32, std::array{int64_t{1}, n_mat});
  }
  for (const auto& [name, entry] : sums.entries) {
    const std::vector<float> counts(entry.counts.begin(), entry.counts.end());
    writer.write_tensor(name + std::string(kImatrixSums), std::as_bytes(std::span(entry.sums)));
    writer.write_tensor(name + std::string(kCounts), std::as_bytes(std::span(counts)));
  }
  writer.finish();
}

}  // namespace tandem::tools
