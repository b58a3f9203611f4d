// How the product drivers hold and store the sums of a tile: acc[T][16 rows].
#pragma once

#include "cpu/avx512/linear_layout.h"
#include "cpu/avx512/linear_simd.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

constexpr int64_t min64(int64_t a, int64_t b) {
  return a < b ? a : b;
}
constexpr int64_t max64(int64_t a, int64_t b) {
  return a > b ? a : b;
}
constexpr size_t align64(size_t n) {
  return (n + 63) & ~size_t{63};
}

// y[token0 + t][row0 .. row0 + 16) = acc[t], plus bias and residual.
TANDEM_INLINE void store_tile(const LinearCall& call, int64_t row0, int64_t token0, int64_t T,
                              const float* acc) {
  const __mmask16 rows = first_lanes(call.m - row0);
  const __m512 bias = call.bias ? _mm512_maskz_loadu_ps(rows, call.bias + row0) : _mm512_setzero_ps();
  for (int64_t t = 0; t < T; ++t) {
    __m512 v = _mm512_add_ps(_mm512_load_ps(acc + 16 * t), bias);
    if (call.residual) {
      v = _mm512_add_ps(v,
                        _mm512_maskz_loadu_ps(rows, call.residual + (token0 + t) * call.ld_residual + row0));
    }
    _mm512_mask_storeu_ps(call.y + (token0 + t) * call.ldy + row0, rows, v);
  }
}

TANDEM_INLINE void clear(float* acc, int64_t T) {
  for (int64_t t = 0; t < T; ++t) _mm512_store_ps(acc + 16 * t, _mm512_setzero_ps());
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
