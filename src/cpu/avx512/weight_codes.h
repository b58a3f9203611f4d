// Numbers as codes of 16 bits in two signed bytes: what attention over a cache of codes multiplies them with, in vectors
// (attention_codes.h) and in tiles (amx/attention_codes.cpp).
#pragma once

#include "cpu/simd/attention_codes.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// Greatest magnitude of the lanes; NaN, if there is one, because its bits are greater than infinity's.
TANDEM_INLINE float magnitude_or_nan(__m512i max_of_bits) {
  const uint32_t bits = _mm512_reduce_max_epu32(max_of_bits);
  float v;
  memcpy(&v, &bits, sizeof v);
  return v;
}
TANDEM_INLINE __m512i magnitude_bits(Vec v) {
  return _mm512_castps_si512(vabs(v));
}

// 256 * high + low, as floats.
TANDEM_INLINE Vec join(__m512i high, __m512i low) {
  return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 8), low));
}

// What 32 columns' codes times the call's scale stand for.
TANDEM_INLINE float scale_of_codes(const float* from, float call_scale) {
  const Vec a = load(from) * set1(call_scale), b = load(from + kLanes) * set1(call_scale);
  return magnitude_or_nan(_mm512_max_epu32(magnitude_bits(a), magnitude_bits(b))) / kMaxCode;
}
// 32 columns of a query times the call's scale.
struct QueryCodes {
  __m128i high[2], low[2];  // of 16 columns each
  int32_t sum;

  TANDEM_INLINE QueryCodes(const float* from, float call_scale, Vec inverse) {
    const Vec a = load(from) * set1(call_scale), b = load(from + kLanes) * set1(call_scale);
    const __m512i codes[2] = {_mm512_cvtps_epi32(a * inverse), _mm512_cvtps_epi32(b * inverse)};
    for (int h = 0; h < 2; ++h) {
      high[h] = _mm512_cvtepi32_epi8(_mm512_srai_epi32(_mm512_add_epi32(codes[h], _mm512_set1_epi32(128)), 8));
      low[h] = _mm512_cvtepi32_epi8(codes[h]);
    }
    sum = _mm512_reduce_add_epi32(_mm512_add_epi32(codes[0], codes[1]));
  }
};

// A panel's weights of one query for a block of columns, in the order that packing gives: those of positions 4 * i .. 4 * i + 3 are
// word at(i).
struct WeightCodes {
  __m512i high, low;
  float scale;

  static constexpr int64_t at(int64_t i) { return i % 4 * 4 + i / 4; }

  TANDEM_INLINE WeightCodes(const float* weights, const Vec (&scales)[kGroups]) {
    Vec x[kGroups];
    __m512i most = _mm512_setzero_si512(), c[kGroups];
#pragma GCC unroll 4
    for (int64_t i = 0; i < kGroups; ++i) {
      x[i] = load(weights + i * kGroup) * scales[i];
      most = _mm512_max_epu32(most, magnitude_bits(x[i]));
    }
    scale = magnitude_or_nan(most) / kMaxCode;
    const Vec inverse = set1(finite_inverse(scale));
#pragma GCC unroll 4
    for (int64_t i = 0; i < kGroups; ++i) c[i] = _mm512_cvtps_epi32(x[i] * inverse);
    a_ = _mm512_packs_epi32(c[0], c[1]);
    b_ = _mm512_packs_epi32(c[2], c[3]);
    const __m512i half = _mm512_set1_epi16(128);
    const __m512i high_a = _mm512_srai_epi16(_mm512_add_epi16(a_, half), 8);
    const __m512i high_b = _mm512_srai_epi16(_mm512_add_epi16(b_, half), 8);
    const __m512i low_a = _mm512_sub_epi16(a_, _mm512_slli_epi16(high_a, 8));
    const __m512i low_b = _mm512_sub_epi16(b_, _mm512_slli_epi16(high_b, 8));
    high = _mm512_packs_epi16(high_a, high_b);
    low = _mm512_packs_epi16(low_a, low_b);
  }

  // Of all codes.
  TANDEM_INLINE int32_t sum() const {
    const __m512i ones = _mm512_set1_epi16(1);
    return _mm512_reduce_add_epi32(_mm512_add_epi32(_mm512_madd_epi16(a_, ones), _mm512_madd_epi16(b_, ones)));
  }

 private:
  __m512i a_, b_;
};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
