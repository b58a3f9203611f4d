// Pairs of bf16: a lane holds two numbers that are multiplied together, the even one in its lower half. For the folders
// whose flags have BF16.
#pragma once

#include <immintrin.h>

#include "base/fp16.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// Two vectors of floats as one of pairs of bf16. Rounds to nearest even; NaN stays NaN, subnormals become zero.
TANDEM_INLINE __m512i pack_pairs(__m512 even, __m512 odd) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                         22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}
TANDEM_INLINE __m512 even_of(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}
TANDEM_INLINE __m512 odd_of(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
