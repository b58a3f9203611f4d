// A product for each head, with a matrix of its own: y_h = x_h W_h^T, and the columns of x_h that the matrix does not
// multiply follow unchanged. head_linear is this op; latent attention has two of them inside.
#pragma once

#include "cpu/compiled_op.h"

namespace tandem::cpu {

class HeadProducts {
 public:
  // Rows of x have x_cols columns a head. Steps have up to max_tokens.
  HeadProducts(const CompileContext& context, TensorId weight, int64_t x_cols, int64_t max_tokens);

  // Called by all workers; ends with a barrier. x [n, H * x_cols], y [n, H * y_cols]; scratch is this worker's.
  void run(Worker& worker, const float* x, float* y, int64_t n, std::byte* scratch) const;

  const Weight& weight() const { return weight_; }
  int64_t x_cols() const { return x_cols_; }
  int64_t y_cols() const { return y_cols_; }
  size_t scratch_bytes() const { return scratch_bytes_; }  // per worker

 private:
  // Some tokens of x and y.
  struct Rows {
    const float* x;
    float* y;
    int64_t n;
  };
  int64_t strip_rows(int64_t n, int64_t n_pairs, int n_workers) const;
  void multiply(int64_t head, const Rows& rows, int64_t row0, int64_t row1, std::byte* scratch) const;

  const LinearKernels& kernels_;
  const Weight& weight_;  // [H, m, k]
  const std::byte* w_;
  int64_t x_cols_, n_kept_, y_cols_;  // of a head
  size_t encoded_bytes_ = 0, scratch_bytes_ = 0;
};

}  // namespace tandem::cpu
