// The few vector operations that matrix products are made of.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "base/fp16.h"
#include "cpu/linear_kernels.h"
#include "cpu/simd/fetch.h"
#include "cpu/simd/unroll.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// acc[lane] += sum of 4 products of unsigned bytes u and signed bytes s. wide: u may exceed 127.
template <bool wide>
TANDEM_INLINE __m512i dot_u8s8(__m512i acc, __m512i u, __m512i s) {
#ifdef __AVX512VNNI__
  return _mm512_dpbusd_epi32(acc, u, s);
#else
  if constexpr (!wide) {  // pairs fit 16 bits
    return _mm512_add_epi32(acc, _mm512_madd_epi16(_mm512_maddubs_epi16(u, s), _mm512_set1_epi16(1)));
  } else {
    const __m512i u_even = _mm512_and_si512(u, _mm512_set1_epi16(0xff)), u_odd = _mm512_srli_epi16(u, 8);
    const __m512i s_even = _mm512_srai_epi16(_mm512_slli_epi16(s, 8), 8), s_odd = _mm512_srai_epi16(s, 8);
    return _mm512_add_epi32(
        acc, _mm512_add_epi32(_mm512_madd_epi16(u_even, s_even), _mm512_madd_epi16(u_odd, s_odd)));
  }
#endif
}

// acc[lane] += sum of 2 products of 16-bit integers.
TANDEM_INLINE __m512i dot_i16(__m512i acc, __m512i a, __m512i b) {
#ifdef __AVX512VNNI__
  return _mm512_dpwssd_epi32(acc, a, b);
#else
  return _mm512_add_epi32(acc, _mm512_madd_epi16(a, b));
#endif
}

// Low halves of 16 words, as floats.
TANDEM_INLINE __m512 low_halves(__m512i words) {
  return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words));
}
TANDEM_INLINE __m512 high_halves(__m512i words) {
  return low_halves(_mm512_srli_epi32(words, 16));
}

TANDEM_INLINE __m128i sixteen(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
// 16 bytes at each of four places.
TANDEM_INLINE __m512i four_sixteens(const void* a, const void* b, const void* c, const void* d) {
  const __m512i two = _mm512_inserti32x4(_mm512_castsi128_si512(sixteen(a)), sixteen(b), 1);
  return _mm512_inserti32x4(_mm512_inserti32x4(two, sixteen(c), 2), sixteen(d), 3);
}
// In each lane of 16 bytes, word c of vector r becomes word r of vector c.
TANDEM_INLINE void transpose4(__m512i (&v)[4]) {
  const __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpackhi_epi32(v[0], v[1]);
  const __m512i c = _mm512_unpacklo_epi32(v[2], v[3]), d = _mm512_unpackhi_epi32(v[2], v[3]);
  v[0] = _mm512_unpacklo_epi64(a, c), v[1] = _mm512_unpackhi_epi64(a, c);
  v[2] = _mm512_unpacklo_epi64(b, d), v[3] = _mm512_unpackhi_epi64(b, d);
}
// In each lane of 16 bytes the words of vectors a and b in turn: of their first halves, and of their second ones.
TANDEM_INLINE void interleave_words(__m512i& a, __m512i& b) {
  const __m512i first = _mm512_unpacklo_epi32(a, b);
  b = _mm512_unpackhi_epi32(a, b);
  a = first;
}

// How far ahead of their use weights that lie in one stream are fetched into L2: what a core reads in the time that memory takes
// to answer, and as much again on a Zen 5. Shorter over longer, as measured by product alone: Granite Rapids F16 +12%, Q4_K and Q8_0
// up to 9%; Zen 4 with two threads F16 4%, Q4_K 5%, Q8_0 12%, Q4_0 19%, Q6_K 27%. 8 KB over 6 on a Zen 4 with weights in huge pages:
// Q4_K 8% and Q8_0 7% in a loop alone, decoding 6% and 2%; 10 and 12 KB the same.
TANDEM_INLINE size_t ahead_into_l2() {
  if (__builtin_cpu_is("intel")) return size_t{4} << 10;
  if (__builtin_cpu_is("amdfam19h")) return size_t{8} << 10;  // Zen 4, and Zen 3, which has no AVX-512
  return size_t{12} << 10;
}

// The same into L1, after that. On two cores of a Zen 5 6 KB over 1.5, by product alone, one token and two: Q4_K 11% and 3% faster with
// one thread, 5% with two, Q8_0 14% and 4 to 10%; 4 KB a little less, 8 the same. A Zen 4 has not been measured.
TANDEM_INLINE size_t ahead_into_l1() {
  return __builtin_cpu_is("intel") || narrow_avx512() ? kAheadInL1 : size_t{6} << 10;
}

// Prefetches the lines of some bytes, which need not be there.
TANDEM_INLINE void fetch_into_l2(const std::byte* from, size_t n_bytes) {
#pragma GCC unroll 1
  for (size_t i = 0; i < n_bytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(from + i), _MM_HINT_T1);
}

TANDEM_INLINE __mmask16 first_lanes(int64_t n) {
  return n >= 16 ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << n) - 1);
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
