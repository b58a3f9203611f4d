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

  // Returns a factor for each matrix, [dims[2]]: its largest weight divided by NVFP4's largest number, 448 * 6. 1 for a matrix of zeros.
  std::vector<float> nvfp4_factors(const TensorInfo& source);

  // importance: [n_slices, dims[0]] for the slices of dims[2], or [dims[0]] for all, or empty.
  // factors: what the weights of a matrix are divided by, [dims[2]]; or empty.
  // sink gets the rows in order; n_weights is how many weights they hold.
  using Sink = std::function<void(std::span<const std::byte> bytes, int64_t n_weights)>;
  void convert(const TensorInfo& source, const std::string& path, DType dtype,
               std::span<const float> importance, std::span<const float> factors, const Sink& sink);

 private:
  int64_t batch_rows(const TensorInfo& source) const;
  // Runs fn(row, floats of that row, index of the worker) for n rows from `first` on.
  template <class Fn>
  void for_each_row(const TensorInfo& source, int64_t first, int64_t n, Fn fn);

  ThreadPool& pool_;
  std::vector<std::vector<float>> rows_;  // of each worker
  std::vector<std::byte> out_;
};

}  // namespace tandem::tools
