// The rows of one tensor from one dtype to another on all threads, in batches that bound the memory.
//
// Owns its buffers; use one for all tensors. Called from one thread, works on those of the pool. Throws
// Error(bad_file) naming the tensor when weights are NaN, infinite or too large for the target, after having
// counted them all, and Error(interrupted) after Ctrl-C; the sink may throw too.
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

  // importance: [n_slices, dims[0]] for the slices of dims[2], or [dims[0]] for all of them, or empty.
  // sink gets the rows in order; n_rows says how many weights they were.
  using Sink = std::function<void(std::span<const std::byte> bytes, int64_t n_weights)>;
  void convert(const TensorInfo& source, const std::string& path, DType dtype,
               std::span<const float> importance, const Sink& sink);

 private:
  ThreadPool& pool_;
  std::vector<std::vector<float>> rows_;  // of each worker
  std::vector<std::byte> out_;
};

}  // namespace tandem::tools
