// Times the ops that matter on a device, with memory that it frees afterwards: the speed of the kernels,
// not of the hardware. One thread. Throws what the device throws.
#pragma once

#include <functional>
#include <vector>

#include "plan/cost.h"

namespace tandem {

// Work at the same time as each timed run.
struct Overlap {
  std::function<void()> begin;
  std::function<void(double run_s)> end;
};

class OpBench {
 public:
  explicit OpBench(Device& device) : device_(device) {}
  ~OpBench() { free_all(); }
  OpBench(const OpBench&) = delete;
  OpBench& operator=(const OpBench&) = delete;

  struct Matrix {  // a square one
    DType dtype = DType::Q4_K;
    int64_t size = 0;  // a multiple of 256

    size_t n_bytes() const { return row_bytes(dtype, size) * static_cast<size_t>(size); }
    double n_ops() const { return 2.0 * static_cast<double>(size * size); }  // of a product with one row
  };
  // Seconds of n_tokens rows multiplied by one such matrix after the other. This and all others: the median
  // of several runs, for that is what a user gets.
  double products(const Matrix& matrix, int64_t n_tokens, size_t n_matrices, const Overlap& overlap = {});
  // Of n_ops ops on one row, so small that they are little but starting them.
  double small_ops(int n_ops);

  // A step of one sequence through layers that only attend, with a cache of half floats.
  struct Attention {
    int64_t n_tokens = 1;
    int64_t n_past = 0;
    int n_layers = 1;
  };
  // Seconds; and what a layer's op has to do.
  double attention(const Attention& step);
  static NodeWork attention_work(const Attention& step);

  // Of work that the caller gives to the device.
  double seconds_of(const std::function<void()>& work, const Overlap& overlap = {});
  DevicePtr alloc(size_t n_bytes);  // free again when this object is gone, or measures the next thing

 private:
  double run_seconds(const Graph& graph, const StepShape& shape, int64_t n_past, std::span<const KvLayer> kv,
                     const Overlap& overlap);
  void free_all();

  Device& device_;
  std::vector<DevicePtr> allocated_;
};

}  // namespace tandem
