// Integer products of AVX2, which are other instructions where the file is compiled for AVX-VNNI.
#pragma once

#include <immintrin.h>

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// sum += addend, at this point: without the barrier GCC reassociates integer sums across an unrolled loop,
// keeps every product alive until its end and spills most of them (half the speed).
TANDEM_INLINE void add16(__m256i& sum, __m256i addend) {
  sum = _mm256_add_epi16(sum, addend);
  asm("" : "+x"(sum));
}
TANDEM_INLINE void add32(__m256i& sum, __m256i addend) {
  sum = _mm256_add_epi32(sum, addend);
  asm("" : "+x"(sum));
}

// Products of 32 unsigned integers with 32 int8 activations, in 16 int16 lanes of two columns each. Activations are within
// +-127, so int16 does not overflow up to 128. For signed integers, w is their magnitude and the activations have their signs.
TANDEM_INLINE __m256i products(__m256i w, __m256i x) {
  return _mm256_maddubs_epi16(w, x);
}

// add_dot: sum += products of 32 unsigned integers with 32 int8 activations, in int32 lanes of four columns with VNNI, in int16
// lanes of two columns without. add_scaled: int32 sum += pairs of int16 lanes, each times its lane of `scales`.
#if defined(TANDEM_EVEX_VNNI)
// For tests on machines that have these instructions in the encoding of AVX-512 only.
constexpr bool kVnni = true;
TANDEM_INLINE void add_dot(__m256i& sum, __m256i w, __m256i x) {
  asm("%{evex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(w), "x"(x));
}
TANDEM_INLINE void add_scaled(__m256i& sum, __m256i pairs, __m256i scales) {
  asm("%{evex%} vpdpwssd %2, %1, %0" : "+x"(sum) : "x"(pairs), "x"(scales));
}
#elif defined(__AVXVNNI__)
constexpr bool kVnni = true;
TANDEM_INLINE void add_dot(__m256i& sum, __m256i w, __m256i x) {
  sum = _mm256_dpbusd_avx_epi32(sum, w, x);
}
TANDEM_INLINE void add_scaled(__m256i& sum, __m256i pairs, __m256i scales) {
  sum = _mm256_dpwssd_avx_epi32(sum, pairs, scales);
}
#else
constexpr bool kVnni = false;
TANDEM_INLINE void add_dot(__m256i& sum, __m256i w, __m256i x) {
  add16(sum, products(w, x));
}
TANDEM_INLINE void add_scaled(__m256i& sum, __m256i pairs, __m256i scales) {
  add32(sum, _mm256_madd_epi16(pairs, scales));
}
#endif

// What add_dot() has summed, as int32.
TANDEM_INLINE __m256i widened(__m256i sum) {
  return kVnni ? sum : _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
}
// Products in 8 int32 lanes, of which lane i sums columns 4i..4i+3.
TANDEM_INLINE __m256i dot_of_4(__m256i w, __m256i x) {
  if constexpr (!kVnni) return widened(products(w, x));
  __m256i sum = _mm256_setzero_si256();
  add_dot(sum, w, x);
  return sum;
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
