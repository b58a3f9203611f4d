// The rows of a norm, for the op itself and for products that normalize their input.
#pragma once

#include "cpu/ops/rows.h"

namespace tandem::cpu {

class NormRows {
 public:
  NormRows(const CompileContext& context, const Node& node, const NormOp& op);

  int64_t n_cols() const { return shape_.n_cols; }
  float* output() const { return y_; }  // [n, n_cols]
  // Normalizes a row of the input, into to[n_cols].
  void normalize(int64_t row, float* to) const;
  // Normalizes n rows into the output, by all workers. Ends with a barrier.
  void run(Worker& worker, int64_t n) const;

 private:
  NormOp op_;
  decltype(RowKernels::rms_norm) kernel_;
  const Tensor& shape_;         // of the output
  bool weight_of_each_;         // group of a row
  const float* x_;              // [n, n_cols]
  VectorWeight weight_, bias_;  // [group]; the weight perhaps [n_cols / group, group]
  float* y_;
};

}  // namespace tandem::cpu
