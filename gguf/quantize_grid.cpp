// Quantizers of the IQ types with grids: each type's parameters for the search of quants_grid.h, and its packing.
#include <cstring>

#include "gguf/blocks.h"
#include "gguf/quants_grid.h"

namespace tandem::quants {
namespace {

constexpr GridType iq2_type(const uint16_t* codes, int n, int sub, GridSigns signs) {
  return {codes, n, 8, {8, 25, 43}, sub, signs, GridDelta::none, 31, 0.125f};
}
constexpr GridType iq1_type(int sub, GridDelta delta) {
  return {kGrids.iq1, 2048, 8, {-1, 0, 1}, sub, GridSigns::none, delta, 15, 1.0f};
}
constexpr GridType kIQ2_XXS = iq2_type(kGrids.iq2_xxs, 256, 32, GridSigns::even);
constexpr GridType kIQ2_XS = iq2_type(kGrids.iq2_xs, 512, 16, GridSigns::even);
constexpr GridType kIQ2_S = iq2_type(kGrids.iq2_s, 1024, 16, GridSigns::free);
constexpr GridType kIQ3_XXS{kGrids.iq3_xxs,  256, 4,    {4, 12, 20, 28, 36, 44, 52, 62}, 32, GridSigns::even,
                            GridDelta::none, 31,  0.25f};
constexpr GridType kIQ3_S{kGrids.iq3_s,    512, 4,   {1, 3, 5, 7, 9, 11, 13, 15}, 32, GridSigns::free,
                          GridDelta::none, 31,  1.0f};
constexpr GridType kIQ1_S = iq1_type(32, GridDelta::per_sub_block);
constexpr GridType kIQ1_M = iq1_type(16, GridDelta::per_vector);

// Calls pack(fit, block) for each super-block; blocks start as zeros.
template <class Block, class Pack>
void quantize_blocks(const GridType& type, const float* x, Block* to, int64_t n, const float* importance,
                     Pack&& pack) {
  GridFitter fitter(type);
  GridBlock fit;
  for (int64_t b = 0; b < n / QK_K; ++b) {
    fitter.fit(x + b * QK_K, importance ? importance + b * QK_K : nullptr, fit);
    Block block{};
    pack(fit, block);
    std::memcpy(to + b, &block, sizeof block);
  }
}

// Four times seven signs, and the scale above them.
uint32_t pack_signs_and_scale(const GridBlock& fit, int s) {
  uint32_t word = static_cast<uint32_t>(fit.scales[s]) << 28;
  for (int v = 0; v < 4; ++v) word |= (fit.signs[4 * s + v] & 127u) << 7 * v;
  return word;
}

void put_word(uint32_t word, uint16_t* to) {
  to[0] = static_cast<uint16_t>(word);
  to[1] = static_cast<uint16_t>(word >> 16);
}

// Two nibbles for the scales 2 i and 2 i + 1.
uint8_t scale_pair(const GridBlock& fit, int i) {
  return static_cast<uint8_t>(fit.scales[2 * i] | fit.scales[2 * i + 1] << 4);
}

}  // namespace

void quantize(const float* x, BlockIQ2_XXS* to, int64_t n, const float* importance) {
  quantize_blocks(kIQ2_XXS, x, to, n, importance, [](const GridBlock& fit, BlockIQ2_XXS& block) {
    block.d = fit.d;
    for (int s = 0; s < 8; ++s) {
      for (int v = 0; v < 4; ++v) {
        block.qs[4 * s + v / 2] =
            static_cast<uint16_t>(block.qs[4 * s + v / 2] | fit.index[4 * s + v] << v % 2 * 8);
      }
      put_word(pack_signs_and_scale(fit, s), block.qs + 4 * s + 2);
    }
  });
}

void quantize(const float* x, BlockIQ2_XS* to, int64_t n, const float* importance) {
  quantize_blocks(kIQ2_XS, x, to, n, importance, [](const GridBlock& fit, BlockIQ2_XS& block) {
    block.d = fit.d;
    for (int v = 0; v < 32; ++v)
      block.qs[v] = static_cast<uint16_t>(fit.index[v] | (fit.signs[v] & 127) << 9);
    for (int i = 0; i < 8; ++i) block.scales[i] = scale_pair(fit, i);
  });
}

void quantize(const float* x, BlockIQ2_S* to, int64_t n, const float* importance) {
  quantize_blocks(kIQ2_S, x, to, n, importance, [](const GridBlock& fit, BlockIQ2_S& block) {
    block.d = fit.d;
    std::memcpy(block.signs, fit.signs, sizeof block.signs);
    for (int v = 0; v < 32; ++v) {
      block.qs[v] = static_cast<uint8_t>(fit.index[v]);
      block.qh[v / 4] = static_cast<uint8_t>(block.qh[v / 4] | fit.index[v] >> 8 << v % 4 * 2);
    }
    for (int i = 0; i < 8; ++i) block.scales[i] = scale_pair(fit, i);
  });
}

void quantize(const float* x, BlockIQ3_XXS* to, int64_t n, const float* importance) {
  quantize_blocks(kIQ3_XXS, x, to, n, importance, [](const GridBlock& fit, BlockIQ3_XXS& block) {
    block.d = fit.d;
    for (int v = 0; v < 64; ++v) block.qs[v] = static_cast<uint8_t>(fit.index[v]);
    for (int s = 0; s < 8; ++s) put_word(pack_signs_and_scale(fit, s), block.words + 2 * s);
  });
}

void quantize(const float* x, BlockIQ3_S* to, int64_t n, const float* importance) {
  quantize_blocks(kIQ3_S, x, to, n, importance, [](const GridBlock& fit, BlockIQ3_S& block) {
    block.d = fit.d;
    std::memcpy(block.signs, fit.signs, sizeof block.signs);
    for (int v = 0; v < 64; ++v) {
      block.qs[v] = static_cast<uint8_t>(fit.index[v]);
      block.qh[v / 8] = static_cast<uint8_t>(block.qh[v / 8] | fit.index[v] >> 8 << v % 8);
    }
    for (int i = 0; i < 4; ++i) block.scales[i] = scale_pair(fit, i);
  });
}

void quantize(const float* x, BlockIQ1_S* to, int64_t n, const float* importance) {
  quantize_blocks(kIQ1_S, x, to, n, importance, [](const GridBlock& fit, BlockIQ1_S& block) {
    block.d = fit.d;
    for (int s = 0; s < 8; ++s) {
      int word = fit.scales[s] << 12 | (fit.subtracted[4 * s] ? 0x8000 : 0);
      for (int v = 0; v < 4; ++v) {
        block.qs[4 * s + v] = static_cast<uint8_t>(fit.index[4 * s + v]);
        word |= fit.index[4 * s + v] >> 8 << 3 * v;
      }
      block.qh[s] = static_cast<uint16_t>(word);
    }
  });
}

void quantize(const float* x, BlockIQ1_M* to, int64_t n, const float* importance) {
  quantize_blocks(kIQ1_M, x, to, n, importance, [](const GridBlock& fit, BlockIQ1_M& block) {
    for (int v = 0; v < 32; ++v) {
      const int nibble = fit.index[v] >> 8 | (fit.subtracted[v] ? 8 : 0);
      block.qs[v] = static_cast<uint8_t>(fit.index[v]);
      block.qh[v / 2] = static_cast<uint8_t>(block.qh[v / 2] | nibble << v % 2 * 4);
    }
    for (int i = 0; i < 4; ++i) {
      int word = fit.d >> 4 * i << 12 & 0xf000;
      for (int s = 0; s < 4; ++s) word |= fit.scales[4 * i + s] << 3 * s;
      block.scales[i] = static_cast<uint16_t>(word);
    }
  });
}

}  // namespace tandem::quants
