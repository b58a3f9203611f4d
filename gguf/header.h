// GgufHeader: what a GGUF v3 file has before its tensor data. The writer starts a file with it; planning needs no
// more of a model than that.
//
// Single-threaded. A tensor that cannot be in a file is a bug (TANDEM_CHECK).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/dtype.h"
#include "gguf/metadata.h"

namespace tandem {

inline constexpr uint64_t kDefaultAlignment = 32;  // of a file without general.alignment

class GgufHeader {
 public:
  struct Tensor {
    std::string name;
    DType dtype;
    std::vector<int64_t> dims;
    uint64_t n_bytes;
    uint64_t offset;  // from the start of the tensor data
  };

  // `source` names the file in messages. `alignment` of the tensor data: a power of two >= 8; one other than 32 is
  // set as general.alignment.
  explicit GgufHeader(const std::string& source, uint64_t alignment = 32);

  Metadata& metadata() { return metadata_; }
  uint64_t alignment() const { return alignment_; }
  std::span<const Tensor> tensors() const { return tensors_; }

  // dims: innermost first, 1 to 4; rows are whole blocks of the dtype.
  void add_tensor(std::string_view name, DType dtype, std::span<const int64_t> dims);
  uint64_t n_tensor_bytes() const;  // of all tensors, without padding

  // Returns the header, padded: tensor data follows it.
  std::vector<std::byte> bytes() const;
  // Returns the bytes of the tensor data, with padding.
  uint64_t n_data_bytes() const;

 private:
  uint64_t alignment_;
  Metadata metadata_;
  std::vector<Tensor> tensors_;
};

}  // namespace tandem
