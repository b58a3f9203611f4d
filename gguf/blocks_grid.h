// The block formats whose weights are vectors of a grid (grids.h): an index chooses eight or four magnitudes at once,
// sign bits follow. Included by blocks.h, which says what dequantize_32 is.
#pragma once

#include <cstdint>

#include "base/fp16.h"
#include "gguf/dtype.h"
#include "gguf/grids.h"

namespace tandem {

// Seven sign bits of eight; the eighth makes their number even.
TANDEM_INLINE constexpr uint32_t even_signs(uint32_t bits) {
  uint32_t parity = bits & 127;
  parity ^= parity >> 4;
  parity ^= parity >> 2;
  parity ^= parity >> 1;
  return (bits & 127) | (parity & 1) << 7;
}

// The magnitudes of a code of each family.
TANDEM_INLINE constexpr int iq2_level(uint32_t code) {
  return static_cast<int>(0x2b1908u >> 8 * code & 255);
}
TANDEM_INLINE constexpr int iq3_xxs_level(uint32_t code) {
  return static_cast<int>(8 * code + 4 + (code == 7 ? 2 : 0));
}
TANDEM_INLINE constexpr int iq3_s_level(uint32_t code) {
  return static_cast<int>(2 * code + 1);
}

// Eight elements: the vector `codes` of an IQ2 grid, bit j of `signs` set for a negative element j.
TANDEM_INLINE constexpr void dequantize_iq2(uint32_t codes, uint32_t signs, float scale, float* to) {
  for (int j = 0; j < 8; ++j) {
    const int level = iq2_level(codes >> 2 * j & 3);
    to[j] = scale * static_cast<float>(signs >> j & 1 ? -level : level);
  }
}

// The scale of the IQ2 types: d * (1/2 + four bits) / 4.
TANDEM_INLINE constexpr float iq2_scale(fp16_t d, uint32_t code) {
  return fp16_to_fp32(d) * (0.5f + static_cast<float>(code & 15)) * 0.25f;
}

// x = d * (sc + 1/2) / 4 * grid * sign. Two words for 32 elements: four bytes of indices; four times seven sign bits
// and sc above them.
struct BlockIQ2_XXS {
  static constexpr DType kDType = DType::IQ2_XXS;
  static constexpr int kElements = 256;
  fp16_t d;
  uint16_t qs[32];
};
TANDEM_INLINE constexpr void dequantize_32(const BlockIQ2_XXS& b, int s, float* to) {
  const uint16_t* qs = b.qs + 4 * s;
  const uint32_t word = qs[2] | static_cast<uint32_t>(qs[3]) << 16;
  const float scale = iq2_scale(b.d, word >> 28);
  for (int v = 0; v < 4; ++v) {
    const uint32_t index = qs[v / 2] >> v % 2 * 8 & 255;
    dequantize_iq2(grids().iq2_xxs[index], even_signs(word >> 7 * v), scale, to + 8 * v);
  }
}

// As IQ2_XXS with nine bits of index and seven of signs for each vector, and a scale for 16 elements: a nibble.
struct BlockIQ2_XS {
  static constexpr DType kDType = DType::IQ2_XS;
  static constexpr int kElements = 256;
  fp16_t d;
  uint16_t qs[32];
  uint8_t scales[8];
};
TANDEM_INLINE constexpr void dequantize_32(const BlockIQ2_XS& b, int s, float* to) {
  for (int v = 0; v < 4; ++v) {
    const uint32_t code = b.qs[4 * s + v];
    const float scale = iq2_scale(b.d, b.scales[s] >> v / 2 * 4);
    dequantize_iq2(grids().iq2_xs[code & 511], even_signs(code >> 9), scale, to + 8 * v);
  }
}

// As IQ2_XS with ten bits of index, the high two in qh, and eight free signs.
struct BlockIQ2_S {
  static constexpr DType kDType = DType::IQ2_S;
  static constexpr int kElements = 256;
  fp16_t d;
  uint8_t qs[32];
  uint8_t signs[32];
  uint8_t qh[8];
  uint8_t scales[8];
};
TANDEM_INLINE constexpr void dequantize_32(const BlockIQ2_S& b, int s, float* to) {
  for (int v = 0; v < 4; ++v) {
    const uint32_t index = b.qs[4 * s + v] | (b.qh[s] >> 2 * v & 3u) << 8;
    const float scale = iq2_scale(b.d, b.scales[s] >> v / 2 * 4);
    dequantize_iq2(grids().iq2_s[index], b.signs[4 * s + v], scale, to + 8 * v);
  }
}

// x = d * (sc + 1/2) / 2 * grid * sign. Eight indices for 32 elements; signs and sc as in IQ2_XXS, in words behind
// the indices.
struct BlockIQ3_XXS {
  static constexpr DType kDType = DType::IQ3_XXS;
  static constexpr int kElements = 256;
  fp16_t d;
  uint8_t qs[64];
  uint16_t words[16];
};
TANDEM_INLINE constexpr void dequantize_32(const BlockIQ3_XXS& b, int s, float* to) {
  const uint32_t word = b.words[2 * s] | static_cast<uint32_t>(b.words[2 * s + 1]) << 16;
  const float scale = fp16_to_fp32(b.d) * (0.5f + static_cast<float>(word >> 28)) * 0.5f;
  for (int v = 0; v < 4; ++v) {
    const uint32_t signs = even_signs(word >> 7 * v);
    for (int j = 0; j < 8; ++j) {
      const uint32_t codes = grids().iq3_xxs[b.qs[8 * s + 2 * v + j / 4]];
      const int level = iq3_xxs_level(codes >> j % 4 * 3 & 7);
      to[8 * v + j] = scale * static_cast<float>(signs >> j & 1 ? -level : level);
    }
  }
}

// x = d * (2 sc + 1) * grid * sign. Nine bits of index, the high one in qh; eight free signs.
struct BlockIQ3_S {
  static constexpr DType kDType = DType::IQ3_S;
  static constexpr int kElements = 256;
  fp16_t d;
  uint8_t qs[64];
  uint8_t qh[8];
  uint8_t signs[32];
  uint8_t scales[4];
};
TANDEM_INLINE constexpr void dequantize_32(const BlockIQ3_S& b, int s, float* to) {
  const int sc = b.scales[s / 2] >> s % 2 * 4 & 15;
  const float scale = fp16_to_fp32(b.d) * static_cast<float>(2 * sc + 1);
  for (int v = 0; v < 8; ++v) {
    const uint32_t codes = grids().iq3_s[b.qs[8 * s + v] | (b.qh[s] >> v & 1u) << 8];
    for (int j = 0; j < 4; ++j) {
      const int level = iq3_s_level(codes >> 3 * j & 7);
      const uint32_t negative = b.signs[4 * s + v / 2] >> (v % 2 * 4 + j) & 1;
      to[4 * v + j] = scale * static_cast<float>(negative ? -level : level);
    }
  }
}

// Eight elements of the IQ1 types: -1, 0 or 1, moved by an eighth.
TANDEM_INLINE constexpr void dequantize_iq1(uint32_t codes, float delta, float scale, float* to) {
  for (int j = 0; j < 8; ++j) {
    to[j] = scale * (static_cast<float>(static_cast<int>(codes >> 2 * j & 3) - 1) + delta);
  }
}

// x = d * (2 sc + 1) * (grid +- 1/8). A word of qh for 32 elements: three high bits of each of four indices, three of
// sc, and the sign of the eighth.
struct BlockIQ1_S {
  static constexpr DType kDType = DType::IQ1_S;
  static constexpr int kElements = 256;
  fp16_t d;
  uint8_t qs[32];
  uint16_t qh[8];
};
TANDEM_INLINE constexpr void dequantize_32(const BlockIQ1_S& b, int s, float* to) {
  const uint32_t word = b.qh[s];
  const float scale = fp16_to_fp32(b.d) * static_cast<float>(2 * (word >> 12 & 7) + 1);
  const float delta = word & 0x8000 ? -0.125f : 0.125f;
  for (int v = 0; v < 4; ++v) {
    const uint32_t index = b.qs[4 * s + v] | (word >> 3 * v & 7) << 8;
    dequantize_iq1(grids().iq1[index], delta, scale, to + 8 * v);
  }
}

// As IQ1_S, but a nibble of qh for 8 elements (three high bits of the index, the sign of the eighth) and three bits of
// sc for 16, four times in each word of scales; the high nibbles of these words are d.
struct BlockIQ1_M {
  static constexpr DType kDType = DType::IQ1_M;
  static constexpr int kElements = 256;
  uint8_t qs[32];
  uint8_t qh[16];
  uint16_t scales[4];
};
TANDEM_INLINE constexpr fp16_t iq1_m_d(const BlockIQ1_M& b) {
  return static_cast<fp16_t>(b.scales[0] >> 12 | (b.scales[1] >> 8 & 0xf0) | (b.scales[2] >> 4 & 0xf00) |
                             (b.scales[3] & 0xf000));
}
TANDEM_INLINE constexpr void dequantize_32(const BlockIQ1_M& b, int s, float* to) {
  const float d = fp16_to_fp32(iq1_m_d(b));
  for (int v = 0; v < 4; ++v) {
    const uint32_t nibble = b.qh[2 * s + v / 2] >> v % 2 * 4;
    const int sc = b.scales[s / 2] >> (6 * (s % 2) + v / 2 * 3) & 7;
    const float delta = nibble & 8 ? -0.125f : 0.125f;
    const uint32_t index = b.qs[4 * s + v] | (nibble & 7) << 8;
    dequantize_iq1(grids().iq1[index], delta, d * static_cast<float>(2 * sc + 1), to + 8 * v);
  }
}

}  // namespace tandem
