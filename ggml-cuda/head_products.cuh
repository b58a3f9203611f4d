// A product for each head, with a matrix of its own (ops/head_linear.cu): head_linear, and the absorbed form of latent
// attention.
#pragma once

#include "ggml-cuda/products.cuh"

namespace tandem::cuda {

// Which places of x [n, H, x_cols] and y [n, H, y_cols] belong together: the first k columns of x are multiplied,
// the others go behind the m results.
struct HeadShape {
  int n_head, k, m, x_cols, y_cols;
};

class HeadProducts {
 public:
  // Rows of x have x_cols columns a head; steps have up to max_tokens.
  HeadProducts(const CompileContext& context, TensorId weight, int64_t x_cols, int64_t max_tokens,
               ScratchLayout& scratch);

  void launch(const float* x, float* y, int64_t n, const LaunchContext& context) const;
  int64_t y_cols() const { return shape_.y_cols; }

 private:
  // Some of the step's tokens.
  struct Part {
    int n;
    const float* x;
    float* y;
  };
  void gather(const Part& part, float* to, int64_t stride, cudaStream_t stream) const;
  void scatter(const Part& part, const float* products, int64_t stride, cudaStream_t stream) const;
  void launch_few(const Part& part, const LaunchContext& context) const;
  void launch_many(const Part& part, const LaunchContext& context) const;

  DeviceWeight w_;  // [H, m, k]
  HeadShape shape_;
  int64_t max_n_, max_few_;
  InputEncodings pair_encodings_, encodings_;
  LargeProducts large_;
  size_t gathered_at_ = 0, products_at_ = 0, route_at_ = 0;
};

}  // namespace tandem::cuda
