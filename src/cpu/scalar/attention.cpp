// The reference: one position after the other, with a running maximum. The format's reference code
// dequantizes the cache rows.
#include <cmath>

#include "cpu/attention_kernels.h"
#include "gguf/kivi.h"
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

// A row of one of the two pools as floats.
struct CachedRows {
  DType dtype;
  const std::byte *pool, *open_pool;
  size_t block_stride, open_stride;
  int64_t head_dim;
  bool are_keys;
  const std::byte* spilled;

  void load(const AttentionCall& call, int64_t position, float* to) const {
    const int32_t block = call.block_table[position / call.block_size];
    const int64_t row = position % call.block_size;
    const std::byte* rows = block < call.n_blocks
                                ? pool + static_cast<size_t>(block) * block_stride
                                : spilled + static_cast<size_t>(block - call.n_blocks) * block_stride;
    if (is_kivi(dtype) && call.open_of[block] >= 0) {
      const std::byte* open = open_pool + static_cast<size_t>(call.open_of[block]) * open_stride;
      return dequantize_row(DType::F16, open + static_cast<size_t>(row) * row_bytes(DType::F16, head_dim), to,
                            head_dim);
    }
    if (is_kivi(dtype) && are_keys) return dequantize_key_group(dtype, rows, row, 1, to, head_dim);
    dequantize_row(dtype, rows + static_cast<size_t>(row) * row_bytes(dtype, head_dim), to, head_dim);
  }
};

void attend(const AttentionCall& call, std::byte* scratch) {
  float* k = reinterpret_cast<float*>(scratch);  // [head_dim_k]
  float* v = k + call.head_dim_k;                // [head_dim_v]
  for (int64_t i = 0; i < call.n_queries; ++i) {
    call.sum[i] = 0;
    call.max[i] = -INFINITY;
    for (int64_t d = 0; d < call.head_dim_v; ++d) call.acc[i * call.head_dim_v + d] = 0;
  }
  const float* values = call.values_in_keys ? k : v;
  const CachedRows keys{call.k_dtype,       call.k,          call.k_open, call.k_block_stride,
                        call.k_open_stride, call.head_dim_k, true,        call.k_spilled};
  const CachedRows own_values{call.v_dtype,       call.v,          call.v_open, call.v_block_stride,
                              call.v_open_stride, call.head_dim_v, false,       call.v_spilled};
  for (int64_t p = call.kv_begin; p < call.kv_end; ++p) {
    keys.load(call, p, k);
    if (!call.values_in_keys) own_values.load(call, p, v);
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
