// Converts the rows of one tensor to another dtype on all threads, in batches that bound the memory.
//
// Owns its buffers; use one for all tensors. Called from one thread; works on the pool's threads. Throws
// Error(bad_file) with the tensor if weights are NaN, infinite or too large for the target, after counting
// them all, Error(interrupted) after Ctrl-C, and what the sink throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "gguf/file.h"

namespace tandem::tools {

class RowConverter {
 public:
  explicit RowConverter(ThreadPool& pool);

  // importance: [n_slices, dims[0]] for the slices of dims[2], or [dims[0]] for all, or empty.
  // sink gets the rows in order; n_weights is how many weights they hold.
  using Sink = std::function<void(std::span<const std::byte> bytes, int64_t n_weights)>;
  void convert(const TensorInfo& source, const std::string& path, DType dtype,
               std::span<const float> importance, const Sink& sink);

 private:
  ThreadPool& pool_;
  std::vector<std::vector<float>> rows_;  // of each worker
  std::vector<std::byte> out_;
};

}  // namespace tandem::tools
