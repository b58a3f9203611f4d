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
#include "cpu/avx512/bf16_pairs.h"

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
    load(kConfig);
  }
  TANDEM_INLINE explicit TileScope(const TileConfig& config) { load(config); }
  TANDEM_INLINE ~TileScope() { _tile_release(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;

 private:
  TANDEM_INLINE static void load(const TileConfig& config) {
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
  }
};

// The four sums of two by two factors, in registers 0 .. 3; in memory one tile after the other.
TANDEM_INLINE void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}
TANDEM_INLINE void load_sums(const float* from) {
  _tile_loadd(0, from, 64);
  _tile_loadd(1, from + 256, 64);
  _tile_loadd(2, from + 512, 64);
  _tile_loadd(3, from + 768, 64);
}
TANDEM_INLINE void store_sums(void* to) {
  auto* words = static_cast<float*>(to);
  _tile_stored(0, words, 64);
  _tile_stored(1, words + 256, 64);
  _tile_stored(2, words + 512, 64);
  _tile_stored(3, words + 768, 64);
}

// Tiles and vectors are computed at once if their instructions alternate closely. So what multiplies tiles calls `beside` after
// each product, for a share of what vectors have to do meanwhile; or this.
struct Nothing {
  TANDEM_INLINE void operator()() const {}
};

TANDEM_INLINE void settle_stores() {
  __asm__ volatile("" : : : "memory");
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
