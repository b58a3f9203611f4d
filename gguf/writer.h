// GgufWriter: writes a GGUF v3 file as a stream, so that a model larger than memory can be written.
//
// Use: set metadata(), declare every tensor with add_tensor(); then for each tensor, in that order, call
// begin_tensor() and append() until it is full; then finish(). Until then the file has no final name (see
// base/output_file.h). Not thread-safe. Throws Error(io) when a write fails; a wrong order of calls or number
// of bytes is a bug (TANDEM_CHECK).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/output_file.h"
#include "gguf/header.h"

namespace tandem {

class GgufWriter {
 public:
  // Opens the temporary file. `alignment` of the tensor data: a power of two >= 8.
  explicit GgufWriter(const std::string& path, uint64_t alignment = 32);
  GgufWriter(const GgufWriter&) = delete;
  GgufWriter& operator=(const GgufWriter&) = delete;

  // May be changed until the first begin_tensor(). The constructor sets a general.alignment other than 32.
  Metadata& metadata() { return header_.metadata(); }

  // dims: innermost first, 1 to 4; rows are whole blocks of the dtype.
  void add_tensor(std::string_view name, DType dtype, std::span<const int64_t> dims);
  uint64_t n_tensor_bytes() const {
    return header_.n_tensor_bytes();
  }  // of all declared tensors, without padding

  void begin_tensor(std::string_view name);       // the next declared one
  void append(std::span<const std::byte> bytes);  // a piece of it, of any size
  void write_tensor(std::string_view name, std::span<const std::byte> bytes) {
    begin_tensor(name);
    append(bytes);
  }

  // Writes and syncs everything, without the final name yet: with several files that belong together,
  // complete all of them before finishing the first.
  void complete();
  // Completes the file, if complete() was not called, and gives it its final name.
  void finish();

 private:
  void write_header();
  void pad_to_alignment();

  OutputFile file_;
  GgufHeader header_;
  size_t n_begun_ = 0;   // tensors
  uint64_t n_left_ = 0;  // bytes that the current tensor still needs
  bool header_written_ = false, complete_ = false;
};

}  // namespace tandem
