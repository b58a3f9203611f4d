// Work on one row of floats: norms, rotations, element-wise ops. n is any length >= 1; pointers need no
// alignment; `to` may be the input itself.
#pragma once

#include <cstddef>
#include <cstdint>

#include "graph/ops.h"

namespace tandem::cpu {

inline constexpr int64_t kStateChunk = 32;      // tokens, at most, of one call of the kernels of chunks
inline constexpr int64_t kStateScratch = 8192;  // floats

// Some columns of one head's state in the gated delta rule (graph/ops.h), over the tokens of a sequence.
struct DeltaRuleTile {
  const float* old;  // [head_dim_k, n_cols], rows `state_stride` apart: the state before the first token
  float* state;      // likewise: after the last; may be the same
  int64_t state_stride, head_dim_k, n_cols, n_tokens;
  const float *q, *k;  // [n_tokens, head_dim_k], normalized
  const float* v;      // [n_tokens, n_cols], rows `v_stride` apart
  int64_t v_stride;
  const float *decay, *beta;  // [n_tokens]: the factor of the old state, and of the correction
  float* y;                   // [n_tokens, n_cols], rows `y_stride` apart
  int64_t y_stride;
  // For delta_rule_chunk:
  const float *keys, *queries;  // [n_tokens, kStateChunk]: lower_products of k with k, and of q with k
  float* scratch;               // [kStateScratch], 64-byte aligned
};

// Some columns of one head's state in Mamba-2's scan (graph/ops.h), over the tokens of a sequence.
struct SsmScanTile {
  const float* old;  // [n_state, n_cols], rows `state_stride` apart: the state before the first token
  float* state;      // likewise: after the last; may be the same
  int64_t state_stride, n_state, n_cols, n_tokens;
  const float *b, *c;  // [n_tokens, n_state], rows `bc_stride` apart
  int64_t bc_stride;
  const float* x;  // [n_tokens, n_cols], rows `stride` apart
  int64_t stride;
  const float *decay, *dt;  // [n_tokens]: the factor of the old state, and of x
  float skip;
  float* y;  // [n_tokens, n_cols], rows `y_stride` apart
  int64_t y_stride;
  // For ssm_scan_chunk:
  const float* products;  // [n_tokens, kStateChunk]: lower_products of c with b
  float* scratch;         // [kStateScratch], 64-byte aligned
};

// to[t][u] = a[t]^T b[u] for u <= t; the rest of `to` stays.
struct LowerProducts {
  const float *a, *b;  // [n_rows, n], rows `stride` apart
  int64_t stride, n_rows, n;
  float* to;  // [n_rows, n_rows], rows `to_stride` apart
  int64_t to_stride;
};

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
  // to[i] = x[i] * act(gate[i]), or as GateKind defines it
  void (*gate)(GateKind kind, const float* x, const float* gate, float* to, int64_t n);
  // to[i] = act(sum over j of w[j * n + i] * rows[j][i], + w[kernel * n + i]), for `kernel` rows: the row of w after
  // them is the bias.
  void (*causal_conv)(const float* const* rows, const float* w, int64_t kernel, ConvActivation activation,
                      float* to, int64_t n);
  // Recurrences token by token, for any number of tokens; and for 1 to kStateChunk at once, with the state in place: `old`
  // is `state`, and its rows have whole 64 bytes that may be read and written.
  void (*delta_rule)(const DeltaRuleTile& tile);
  void (*delta_rule_chunk)(const DeltaRuleTile& tile);
  void (*ssm_scan)(const SsmScanTile& tile);
  void (*ssm_scan_chunk)(const SsmScanTile& tile);
  void (*lower_products)(const LowerProducts& products);
  // Multiplies every run of `width` of the n floats by a Hadamard matrix, in place (graph/hadamard.h).
  void (*hadamard)(float* x, int64_t width, int64_t n);
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
