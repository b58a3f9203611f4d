// Eight floats and what the generic kernels of simd/ do with them, for AVX2 with FMA and F16C.
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

using Vec = __m256;
using IVec = __m256i;  // 32-bit integers
using Mask = __m256;   // all bits of a lane
using DVec = __m256d;  // half as many doubles
inline constexpr int64_t kLanes = 8;
inline constexpr int64_t kDLanes = 4;
// Register blocks of the matrix products: rows x vectors of accumulators, of 16 registers.
inline constexpr int kMaxRows = 6, kMaxVecs = 2;

TANDEM_INLINE __m256i first_lanes(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

TANDEM_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
TANDEM_INLINE void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
TANDEM_INLINE Vec load_n(const float* p, int64_t n) { return _mm256_maskload_ps(p, first_lanes(n)); }
TANDEM_INLINE void store_n(float* p, Vec v, int64_t n) { _mm256_maskstore_ps(p, first_lanes(n), v); }
TANDEM_INLINE Vec set1(float x) { return _mm256_set1_ps(x); }
TANDEM_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }    // a * b + c
TANDEM_INLINE Vec fnma(Vec a, Vec b, Vec c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a * b
TANDEM_INLINE Vec vmax(Vec a, Vec b) { return _mm256_max_ps(a, b); }
TANDEM_INLINE Vec vmin(Vec a, Vec b) { return _mm256_min_ps(a, b); }
TANDEM_INLINE Vec vabs(Vec a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
TANDEM_INLINE Vec copy_sign(Vec magnitude, Vec sign) {
  return _mm256_or_ps(magnitude, _mm256_and_ps(sign, _mm256_set1_ps(-0.0f)));
}
TANDEM_INLINE Vec nearest(Vec a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
TANDEM_INLINE Vec truncate(Vec a) { return _mm256_round_ps(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); }
// n whole, -252 .. 254: in two steps, so that each factor is a normal number.
TANDEM_INLINE Vec times_power_of_2(Vec a, Vec n) {
  const __m256i whole = _mm256_cvtps_epi32(n), first = _mm256_srai_epi32(whole, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i f = _mm256_slli_epi32(_mm256_add_epi32(first, bias), 23);
  const __m256i g = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, first), bias), 23);
  return a * _mm256_castsi256_ps(f) * _mm256_castsi256_ps(g);
}
// n whole, -126 .. 0; a about 1, or NaN.
TANDEM_INLINE Vec times_small_power_of_2(Vec a, Vec n) {
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
}

TANDEM_INLINE Mask less(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
TANDEM_INLINE Mask not_less(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_NLT_UQ); }  // true for NaN
TANDEM_INLINE Mask equal(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
TANDEM_INLINE uint32_t bits_of(Mask m) { return static_cast<uint32_t>(_mm256_movemask_ps(m)); }
// Stores first + the index of each lane that is set, next to each other, and returns how many. Room for kLanes.
TANDEM_INLINE int64_t store_indices(int32_t* to, Mask m, int32_t first) {
  int64_t n = 0;
  for (uint32_t bits = bits_of(m); bits != 0; bits &= bits - 1) to[n++] = first + __builtin_ctz(bits);
  return n;
}
TANDEM_INLINE Vec select(Mask m, Vec yes, Vec no) { return _mm256_blendv_ps(no, yes, m); }
TANDEM_INLINE Vec keep(Mask m, Vec a) { return _mm256_and_ps(m, a); }  // 0 elsewhere

TANDEM_INLINE IVec iset1(int32_t x) { return _mm256_set1_epi32(x); }
TANDEM_INLINE IVec iadd(IVec a, IVec b) { return _mm256_add_epi32(a, b); }
TANDEM_INLINE IVec iload(const int32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
TANDEM_INLINE IVec iota(int32_t first) {
  return _mm256_add_epi32(iset1(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
TANDEM_INLINE Mask between(IVec lo, IVec x, IVec hi) {  // lo <= x <= hi
  const __m256i outside = _mm256_or_si256(_mm256_cmpgt_epi32(lo, x), _mm256_cmpgt_epi32(x, hi));
  return _mm256_castsi256_ps(_mm256_xor_si256(outside, _mm256_set1_epi32(-1)));
}

TANDEM_INLINE Vec load_f16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
TANDEM_INLINE Vec load_bf16(const uint16_t* p) {
  const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
TANDEM_INLINE Vec load_i8(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
// 32-bit integers to 16 and 8 bits, keeping the low bits of values that fit.
TANDEM_INLINE __m128i narrow_16(__m256i v) {
  return _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}
TANDEM_INLINE void store_f16(uint16_t* p, Vec v) {
  const __m128i h = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), h);
}
TANDEM_INLINE void store_bf16(uint16_t* p, Vec v) {
  const __m256i bits = _mm256_castps_si256(v), top = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow_16(_mm256_blendv_epi8(rounded, quiet, nan)));
}
// Whole numbers from -128 to 127 (or 0 to 255).
TANDEM_INLINE void store_i8(int8_t* p, Vec v) {
  const __m256i low = _mm256_and_si256(_mm256_cvtps_epi32(v), _mm256_set1_epi32(0xff));
  const __m128i words = narrow_16(low);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
}

// Sums the lanes of four vectors, each half by itself.
TANDEM_INLINE Vec sum_halves_4(Vec a, Vec b, Vec c, Vec d) {
  const Vec ab = _mm256_unpacklo_ps(a, b) + _mm256_unpackhi_ps(a, b);
  const Vec cd = _mm256_unpacklo_ps(c, d) + _mm256_unpackhi_ps(c, d);
  return _mm256_shuffle_ps(ab, cd, 0x44) + _mm256_shuffle_ps(ab, cd, 0xee);
}
// Lane i: the sum of v[i]'s lanes.
TANDEM_INLINE Vec sum_each(const Vec (&v)[8]) {
  Vec halves[4];  // of v[i] and v[i + 4]
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    halves[i] = _mm256_permute2f128_ps(v[i], v[i + 4], 0x20) + _mm256_permute2f128_ps(v[i], v[i + 4], 0x31);
  }
  return sum_halves_4(halves[0], halves[1], halves[2], halves[3]);
}
// Lane i gets lane i + n, modulo the lane count.
TANDEM_INLINE Vec turn_lanes(Vec v, int n) {
  return _mm256_permutevar8x32_ps(v, _mm256_and_si256(iota(n), iset1(7)));
}
TANDEM_INLINE float sum_lanes(Vec a) {
  const Vec s = sum_halves_4(a, a, a, a);
  return _mm_cvtss_f32(_mm256_castps256_ps128(s) + _mm256_extractf128_ps(s, 1));
}
TANDEM_INLINE float max_lanes(Vec a) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

TANDEM_INLINE __m256i first_dlanes(int64_t n) {
  return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
}
TANDEM_INLINE DVec dload(const double* p) { return _mm256_loadu_pd(p); }
TANDEM_INLINE DVec dload_n(const double* p, int64_t n) { return _mm256_maskload_pd(p, first_dlanes(n)); }
TANDEM_INLINE DVec dset1(double x) { return _mm256_set1_pd(x); }
TANDEM_INLINE DVec dfma(DVec a, DVec b, DVec c) { return _mm256_fmadd_pd(a, b, c); }
TANDEM_INLINE DVec dnearest(DVec a) { return _mm256_round_pd(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
TANDEM_INLINE DVec dfloor(DVec a) { return _mm256_round_pd(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
TANDEM_INLINE DVec dselect_equal(DVec a, DVec b, DVec yes, DVec no) {  // a == b ? yes : no
  return _mm256_blendv_pd(no, yes, _mm256_cmp_pd(a, b, _CMP_EQ_OQ));
}
// As floats, the first n of them.
TANDEM_INLINE void dstore_n(float* p, DVec v, int64_t n) {
  const __m128i lanes = _mm_cmpgt_epi32(_mm_set1_epi32(static_cast<int>(n)), _mm_setr_epi32(0, 1, 2, 3));
  _mm_maskstore_ps(p, lanes, _mm256_cvtpd_ps(v));
}

// Even elements and odd elements of 2 * kLanes consecutive floats.
struct Pairs { Vec even, odd; };
TANDEM_INLINE Vec in_order(Vec v) {  // undoes the halves' interleaving by a shuffle of two vectors
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xd8));
}
TANDEM_INLINE Pairs load_pairs(const float* p) {
  const Vec a = load(p), b = load(p + 8);
  return {in_order(_mm256_shuffle_ps(a, b, 0x88)), in_order(_mm256_shuffle_ps(a, b, 0xdd))};
}
TANDEM_INLINE void store_pairs(float* p, Pairs v) {
  const Vec low = _mm256_unpacklo_ps(v.even, v.odd), high = _mm256_unpackhi_ps(v.even, v.odd);
  store(p, _mm256_permute2f128_ps(low, high, 0x20));
  store(p + 8, _mm256_permute2f128_ps(low, high, 0x31));
}

// clang-format on

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
