// The tile registers: their configuration and the products of bf16 tiles.
//
// Compilers know neither that a tile load reads what plain code has stored nor that a configuration reads its operand:
// GCC 12 drops such stores. So the configuration is a constant in memory, and settle_stores() stands between plain
// stores and tile loads.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "base/fp16.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// Palette 1: eight tiles of 16 rows x 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// While one exists, its thread's tile registers are in use. Releasing them lets the system save less.
class TileScope {
 public:
  TANDEM_INLINE TileScope() {
    static constexpr TileConfig kConfig;
    __asm__ volatile("ldtilecfg %0" : : "m"(kConfig));
  }
  TANDEM_INLINE ~TileScope() { _tile_release(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

TANDEM_INLINE void settle_stores() {
  __asm__ volatile("" : : : "memory");
}

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
