// GgufWriter: writes a GGUF v3 file as a stream, so that a model larger than memory can be written.
//
// Use: set metadata(), declare every tensor with add_tensor(), then for each in that order begin_tensor() and
// append() until it is full, then finish(). Until then the file does not have its name (see
// base/output_file.h). Not thread-safe. Throws Error(io) when the disk refuses; using it out of order, or
// with a wrong number of bytes, is a bug (TANDEM_CHECK).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/output_file.h"
#include "gguf/dtype.h"
#include "gguf/metadata.h"

namespace tandem {

class GgufWriter {
 public:
  // Opens the temporary file. `alignment` of tensor data: a power of two, at least 8.
  explicit GgufWriter(const std::string& path, uint64_t alignment = 32);
  GgufWriter(const GgufWriter&) = delete;
  GgufWriter& operator=(const GgufWriter&) = delete;

  // Free to change until the first begin_tensor(). general.alignment is set here when it is not the default.
  Metadata& metadata() { return metadata_; }

  // dims: innermost first, 1 to 4 of them, rows whole blocks of the dtype.
  void add_tensor(std::string_view name, DType dtype, std::span<const int64_t> dims);
  uint64_t n_tensor_bytes() const;  // of all declared tensors, without padding

  void begin_tensor(std::string_view name);       // the next declared one
  void append(std::span<const std::byte> bytes);  // a piece of it, of any size
  void write_tensor(std::string_view name, std::span<const std::byte> bytes) {
    begin_tensor(name);
    append(bytes);
  }

  // Everything is on disk, durably, but not yet under the final name: of several files that belong together
  // all are completed before the first is finished.
  void complete();
  // Completes the file, if that is still to be done, and gives it its final name.
  void finish();

 private:
  struct Tensor {
    std::string name;
    DType dtype;
    std::vector<int64_t> dims;
    uint64_t n_bytes;
    uint64_t offset;  // from the start of the tensor data
  };
  void write_header();
  void pad_to_alignment();

  OutputFile file_;
  uint64_t alignment_;
  Metadata metadata_;
  std::vector<Tensor> tensors_;
  size_t n_begun_ = 0;   // tensors
  uint64_t n_left_ = 0;  // bytes that the current tensor still needs
  bool header_written_ = false, complete_ = false;
};

}  // namespace tandem
