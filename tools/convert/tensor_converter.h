// Converts a checkpoint's tensors to the bytes of the GGUF file, in batches of rows on all threads, so that
// memory holds a few megabytes of a tensor (or one matrix of it, if it is transposed; and the scales of NVFP4 that
// becomes floats, four bytes for 16 weights).
//
// Owns its buffers; use one for all tensors. Called from one thread; works on the pool's threads. Throws
// Error(bad_file) with the tensor if weights are NaN, infinite or too large for the target, after counting
// them all; Error(io) when reading fails, Error(interrupted) after Ctrl-C, and what the sink throws.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "tools/convert/tensor_mapping.h"

namespace tandem::tools {

class TensorConverter {
 public:
  explicit TensorConverter(ThreadPool& pool);

  using Sink = std::function<void(std::span<const std::byte> bytes)>;  // in order
  void convert(const TensorMapping& mapping, const Sink& sink);

 private:
  struct Buffers {  // of one worker
    std::vector<std::byte> raw;
    std::vector<float> row;
  };
  void convert_values(const TensorMapping& mapping, const Sink& sink);
  void convert_floats(const TensorMapping& mapping, const Sink& sink);
  void repack_mxfp4(const TensorMapping& mapping, const Sink& sink);
  void repack_nvfp4(const TensorMapping& mapping, const Sink& sink);
  // Runs row(r, buffers, out) for each row r of the file, and passes what they wrote to the sink.
  template <class Fn>
  void repack_rows(const TensorMapping& mapping, const Sink& sink, Fn row);

  ThreadPool& pool_;
  std::vector<Buffers> buffers_;
  std::vector<std::byte> out_, matrix_;
};

}  // namespace tandem::tools
