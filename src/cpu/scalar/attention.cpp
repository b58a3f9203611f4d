// The reference: one position after the other, with a running maximum. The format's reference code
// dequantizes the cache rows.
#include <cmath>

#include "cpu/attention_kernels.h"
#include "gguf/quants.h"

namespace tandem::cpu::scalar {
namespace {

size_t scratch_bytes(const AttentionCall& call) {
  return static_cast<size_t>(call.head_dim_k + call.head_dim_v) * sizeof(float);
}

bool sees(const AttentionCall& call, int64_t query, int64_t position) {
  const int64_t own = call.positions[query];
  return position <= own && (call.window <= 0 || position > own - call.window);
}

float score(const AttentionCall& call, const float* q, const float* k) {
  double dot = 0;
  for (int64_t d = 0; d < call.head_dim_k; ++d) dot += static_cast<double>(q[d]) * k[d];
  const float s = static_cast<float>(dot) * call.scale;
  return call.softcap > 0 ? call.softcap * std::tanh(s / call.softcap) : s;
}

// Adds one position of score s with value row v to a query's sums.
void accumulate(float s, const float* v, int64_t n, float* acc, float* sum, float* max) {
  if (s == -INFINITY) return;
  if (s > *max) {
    const float factor = std::exp(*max - s);  // 0 for the first
    for (int64_t d = 0; d < n; ++d) acc[d] *= factor;
    *sum *= factor;
    *max = s;
  }
  const float p = std::exp(s - *max);
  for (int64_t d = 0; d < n; ++d) acc[d] += p * v[d];
  *sum += p;
}

void attend(const AttentionCall& call, std::byte* scratch) {
  float* k = reinterpret_cast<float*>(scratch);  // [head_dim_k]
  float* v = k + call.head_dim_k;                // [head_dim_v]
  for (int64_t i = 0; i < call.n_queries; ++i) {
    call.sum[i] = 0;
    call.max[i] = -INFINITY;
    for (int64_t d = 0; d < call.head_dim_v; ++d) call.acc[i * call.head_dim_v + d] = 0;
  }
  const float* values = call.values_in_keys ? k : v;
  const size_t k_row = row_bytes(call.k_dtype, call.head_dim_k),
               v_row = call.values_in_keys ? 0 : row_bytes(call.v_dtype, call.head_dim_v);
  for (int64_t p = call.kv_begin; p < call.kv_end; ++p) {
    const size_t block = static_cast<size_t>(call.block_table[p / call.block_size]);
    const size_t row = static_cast<size_t>(p % call.block_size);
    dequantize_row(call.k_dtype, call.k + block * call.k_block_stride + row * k_row, k, call.head_dim_k);
    if (!call.values_in_keys)
      dequantize_row(call.v_dtype, call.v + block * call.v_block_stride + row * v_row, v, call.head_dim_v);
    for (int64_t i = 0; i < call.n_queries; ++i) {
      if (!sees(call, i, p)) continue;
      accumulate(score(call, call.q[i], k), values, call.head_dim_v, call.acc + i * call.head_dim_v,
                 call.sum + i, call.max + i);
    }
  }
}

void store_row(DType dtype, const float* from, std::byte* to, int64_t n) {
  quantize_cache_row(dtype, from, to, n);
}

}  // namespace

const AttentionKernels& attention_kernels() {
  static constexpr AttentionKernels table{64, scratch_bytes, attend, store_row};
  return table;
}

}  // namespace tandem::cpu::scalar
