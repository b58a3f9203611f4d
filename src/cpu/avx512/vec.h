// Sixteen floats and what the generic kernels of simd/ do with them, for AVX512 (F, BW, DQ, VL).
// min and max return their second operand where either is NaN. Arithmetic is written with operators.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "base/fp16.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// One line an operation:
// clang-format off

using Vec = __m512;
using IVec = __m512i;   // 32-bit integers
using Mask = __mmask16;
using DVec = __m512d;   // half as many doubles
inline constexpr int64_t kLanes = 16;
inline constexpr int64_t kDLanes = 8;
// Register blocks of the matrix products: rows x vectors of accumulators, of 32 registers.
inline constexpr int kMaxRows = 6, kMaxVecs = 4;

TANDEM_INLINE __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }

TANDEM_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
TANDEM_INLINE void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
TANDEM_INLINE Vec load_n(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
TANDEM_INLINE void store_n(float* p, Vec v, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), v); }
TANDEM_INLINE Vec set1(float x) { return _mm512_set1_ps(x); }
TANDEM_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }    // a * b + c
TANDEM_INLINE Vec fnma(Vec a, Vec b, Vec c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a * b
TANDEM_INLINE Vec vmax(Vec a, Vec b) { return _mm512_max_ps(a, b); }
TANDEM_INLINE Vec vmin(Vec a, Vec b) { return _mm512_min_ps(a, b); }
TANDEM_INLINE Vec vabs(Vec a) { return _mm512_abs_ps(a); }
TANDEM_INLINE Vec copy_sign(Vec magnitude, Vec sign) {
  return _mm512_or_ps(magnitude, _mm512_and_ps(sign, _mm512_set1_ps(-0.0f)));
}
TANDEM_INLINE Vec nearest(Vec a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
TANDEM_INLINE Vec truncate(Vec a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); }
TANDEM_INLINE Vec times_power_of_2(Vec a, Vec n) { return _mm512_scalef_ps(a, n); }  // n whole
TANDEM_INLINE Vec times_small_power_of_2(Vec a, Vec n) { return times_power_of_2(a, n); }
TANDEM_INLINE float sum_lanes(Vec a) { return _mm512_reduce_add_ps(a); }
TANDEM_INLINE float max_lanes(Vec a) { return _mm512_reduce_max_ps(a); }

TANDEM_INLINE Mask less(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
TANDEM_INLINE Mask not_less(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ); }  // true for NaN
TANDEM_INLINE Mask equal(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
TANDEM_INLINE uint32_t bits_of(Mask m) { return m; }
// Stores first + the index of each lane that is set, next to each other, and returns how many. Room for kLanes.
TANDEM_INLINE int64_t store_indices(int32_t* to, Mask m, int32_t first) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i indices = _mm512_add_epi32(lanes, _mm512_set1_epi32(first));
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(m, indices));
  return __builtin_popcount(m);
}
TANDEM_INLINE Vec select(Mask m, Vec yes, Vec no) { return _mm512_mask_blend_ps(m, no, yes); }
TANDEM_INLINE Vec keep(Mask m, Vec a) { return _mm512_maskz_mov_ps(m, a); }  // 0 elsewhere

TANDEM_INLINE IVec iset1(int32_t x) { return _mm512_set1_epi32(x); }
TANDEM_INLINE IVec iadd(IVec a, IVec b) { return _mm512_add_epi32(a, b); }
TANDEM_INLINE IVec iload(const int32_t* p) { return _mm512_loadu_si512(p); }
TANDEM_INLINE IVec iota(int32_t first) {
  return _mm512_add_epi32(iset1(first), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}
TANDEM_INLINE Mask between(IVec lo, IVec x, IVec hi) {  // lo <= x <= hi
  return _mm512_mask_cmple_epi32_mask(_mm512_cmple_epi32_mask(lo, x), x, hi);
}

TANDEM_INLINE Vec load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
TANDEM_INLINE Vec load_bf16(const uint16_t* p) {
  const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
TANDEM_INLINE Vec load_i8(const int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
TANDEM_INLINE void store_f16(uint16_t* p, Vec v) {
  const __m256i h = _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), h);
}
TANDEM_INLINE void store_bf16(uint16_t* p, Vec v) {  // by integers: the BF16 instruction flushes subnormals
  const __m512i bits = _mm512_castps_si512(v), top = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
  const __m512i rounded =
      _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i r = _mm512_mask_or_epi32(rounded, nan, top, _mm512_set1_epi32(0x40));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(r));
}
// Whole numbers from -128 to 127 (or 0 to 255).
TANDEM_INLINE void store_i8(int8_t* p, Vec v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
}

// Sums the lanes of four vectors, each quarter by itself.
TANDEM_INLINE Vec sum_quarters_4(Vec a, Vec b, Vec c, Vec d) {
  const Vec ab = _mm512_unpacklo_ps(a, b) + _mm512_unpackhi_ps(a, b);
  const Vec cd = _mm512_unpacklo_ps(c, d) + _mm512_unpackhi_ps(c, d);
  return _mm512_shuffle_ps(ab, cd, 0x44) + _mm512_shuffle_ps(ab, cd, 0xee);
}
// Lane i: the sum of v[i]'s lanes.
TANDEM_INLINE Vec sum_each(const Vec (&v)[16]) {
  Vec halves[8], quarters[4];  // of v[i] and v[i + 4]; of v[i], v[i + 4], v[i + 8] and v[i + 12]
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const Vec a = v[i % 4 + i / 4 * 8], b = v[i % 4 + i / 4 * 8 + 4];
    halves[i] = _mm512_shuffle_f32x4(a, b, 0x44) + _mm512_shuffle_f32x4(a, b, 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    quarters[i] = _mm512_shuffle_f32x4(halves[i], halves[i + 4], 0x88) +
                  _mm512_shuffle_f32x4(halves[i], halves[i + 4], 0xdd);
  }
  return sum_quarters_4(quarters[0], quarters[1], quarters[2], quarters[3]);
}
// Lane i gets lane i + n, modulo the lane count.
TANDEM_INLINE Vec turn_lanes(Vec v, int n) {
  return _mm512_permutexvar_ps(_mm512_and_si512(iota(n), iset1(15)), v);
}

TANDEM_INLINE DVec dload(const double* p) { return _mm512_loadu_pd(p); }
TANDEM_INLINE DVec dload_n(const double* p, int64_t n) {
  return _mm512_maskz_loadu_pd(static_cast<__mmask8>((1u << n) - 1), p);
}
TANDEM_INLINE DVec dset1(double x) { return _mm512_set1_pd(x); }
TANDEM_INLINE DVec dfma(DVec a, DVec b, DVec c) { return _mm512_fmadd_pd(a, b, c); }
TANDEM_INLINE DVec dnearest(DVec a) { return _mm512_roundscale_pd(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
TANDEM_INLINE DVec dfloor(DVec a) { return _mm512_roundscale_pd(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
TANDEM_INLINE DVec dselect_equal(DVec a, DVec b, DVec yes, DVec no) {  // a == b ? yes : no
  return _mm512_mask_blend_pd(_mm512_cmp_pd_mask(a, b, _CMP_EQ_OQ), no, yes);
}
// As floats, the first n of them.
TANDEM_INLINE void dstore_n(float* p, DVec v, int64_t n) {
  _mm256_mask_storeu_ps(p, static_cast<__mmask8>((1u << n) - 1), _mm512_cvtpd_ps(v));
}

// Even elements and odd elements of 2 * kLanes consecutive floats.
struct Pairs { Vec even, odd; };
TANDEM_INLINE Pairs load_pairs(const float* p) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  const Vec a = load(p), b = load(p + 16);
  return {_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b)};
}
TANDEM_INLINE void store_pairs(float* p, Pairs v) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  store(p, _mm512_permutex2var_ps(v.even, low, v.odd));
  store(p + 16, _mm512_permutex2var_ps(v.even, high, v.odd));
}

// clang-format on

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
