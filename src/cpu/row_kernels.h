// Work on one row of floats: norms, rotations, element-wise ops. n is any length >= 1; pointers need no
// alignment; `to` may be the input itself.
#pragma once

#include <cstddef>
#include <cstdint>

#include "graph/ops.h"

namespace tandem::cpu {

struct RowKernels {
  // Normalizes one group: to[i] = x[i] * w[i] / sqrt(mean(x^2) + eps).
  void (*rms_norm)(const float* x, const float* w, const float* bias, float eps, float* to, int64_t n);
  // to[i] = (x[i] - mean) * w[i] / sqrt(var + eps) + bias[i]
  void (*layer_norm)(const float* x, const float* w, const float* bias, float eps, float* to, int64_t n);
  // cos[i] = magnitude * cos(position * frequency[i]), and sin likewise, each within 1e-7 * magnitude for
  // angles below 2^24. Computed in double precision: a float angle of 100000 radians is only accurate to
  // 0.004.
  void (*rotations)(const double* frequency, double position, float magnitude, float* cos, float* sin,
                    int64_t n);
  // Rotates n_rot columns of one head in place; cos and sin hold the angles' values ([n_rot / 2] each).
  void (*rope_pair)(float* x, const float* cos, const float* sin, int64_t n_rot);
  void (*rope_half)(float* x, const float* cos, const float* sin, int64_t n_rot);
  // to[i] = a[i] + factor * b[i]
  void (*add)(const float* a, const float* b, float factor, float* to, int64_t n);
  void (*scale)(const float* x, float factor, float* to, int64_t n);
  void (*softcap)(const float* x, float cap, float* to, int64_t n);
  // to[i] = act(gate[i]) * up[i], or as Activation defines it
  void (*glu)(Activation activation, const float* gate, const float* up, float* to, int64_t n);
  // Dequantizes a row of a weight to floats, exactly as the scalar reference does.
  void (*dequantize)(DType dtype, const std::byte* row, float* to, int64_t n);
};

namespace scalar {
const RowKernels& row_kernels();
}
namespace avx2 {
const RowKernels& row_kernels();
}
namespace avx512 {
const RowKernels& row_kernels();
}
namespace avx512_vnni {
const RowKernels& row_kernels();
}

}  // namespace tandem::cpu
