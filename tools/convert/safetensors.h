// SafetensorsFile: one *.safetensors file, with a validated header; tensors are read by position.
//
// Layout: u64 n (little-endian); n bytes of JSON {name: {dtype, shape, data_offsets: [begin, end]}, ...},
// perhaps with "__metadata__"; the data, which the tensors fill without gaps or overlaps.
//
// Nothing is mapped, so memory holds only what is read. Owns the file descriptor; must outlive its tensors.
// Any thread may read. Throws Error(bad_file) with file and tensor, and Error(io) when the file cannot be
// opened or read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::tools {

enum class SourceDType { F64, F32, F16, BF16, F8_E4M3, U8, I8, I16, U16, I32, U32, I64, U64, boolean };

std::string_view source_dtype_name(SourceDType dtype);  // as in the file
size_t source_dtype_bytes(SourceDType dtype);

class SafetensorsFile;

struct SourceTensor {
  std::string name;
  SourceDType dtype;
  std::vector<int64_t> shape;  // outermost first, as in the file
  const SafetensorsFile* file;
  uint64_t offset, n_bytes;  // of the data, from the start of the file

  int64_t n_elements() const;
  std::string shape_text() const;  // "[32000, 2048]"
};

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  const std::map<std::string, SourceTensor, std::less<>>& tensors() const { return tensors_; }

  // Fills `out` from `offset`, both inside the file. Throws if the file has shrunk.
  void read(uint64_t offset, std::span<std::byte> out) const;

 private:
  void parse_header(std::string_view text, uint64_t data_start, uint64_t n_data_bytes);
  void check_layout(uint64_t data_start, uint64_t n_data_bytes) const;

  std::string path_;
  int fd_ = -1;
  std::map<std::string, SourceTensor, std::less<>> tensors_;
};

}  // namespace tandem::tools
