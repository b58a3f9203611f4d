// The block formats: each one's layout, byte for byte as GGUF stores it, and how to read it. `d` and `m`/`dmin`
// are IEEE halves. Value formulas: j counts elements inside the block, sub-blocks are 16 or 32 elements wide.
//
// dequantize_32 is the reference of a format: the 32 elements from 32 * s on. The order of its multiplications
// is part of the contract: every implementation gives the same bits. It is constexpr and calls nothing that
// is not, so that GPU compilers can make device code of it (a table of levels must then be local to it).
//
// A new format is a struct, its dequantize_32 and its place in BlockFormats: every device then computes with
// it, by way of rows of floats. With a quantizer it can be written, too.
#pragma once

#include <cstdint>

#include "base/fp16.h"
#include "gguf/blocks_grid.h"
#include "gguf/dtype.h"

namespace tandem {

inline constexpr int QK = 32;     // elements in a block of the simple types
inline constexpr int QK_K = 256;  // elements in a super-block of the K types

// ---- Blocks of 32 ----

// Unpacking and multiplying are loops of their own, which compilers vectorize.

// 32 nibbles, the low ones first.
TANDEM_INLINE constexpr void unpack_nibbles(const uint8_t* qs, uint8_t* codes) {
  for (int j = 0; j < QK / 2; ++j) {
    codes[j] = qs[j] & 15;
    codes[j + QK / 2] = qs[j] >> 4;
  }
}
// Bit j of qh as bit 4 of code j.
TANDEM_INLINE constexpr void add_fifth_bits(const uint8_t* qh, uint8_t* codes) {
  const uint32_t bits = qh[0] | qh[1] << 8 | qh[2] << 16 | static_cast<uint32_t>(qh[3]) << 24;
  for (int j = 0; j < QK; ++j) codes[j] = static_cast<uint8_t>(codes[j] | (bits >> j & 1) << 4);
}

// x = d * (q - 8). Low nibbles are elements 0..15, high nibbles 16..31.
struct BlockQ4_0 {
  static constexpr DType kDType = DType::Q4_0;
  static constexpr int kElements = QK;
  fp16_t d;
  uint8_t qs[QK / 2];
};
TANDEM_INLINE constexpr void dequantize_32(const BlockQ4_0& b, int, float* to) {
  const float d = fp16_to_fp32(b.d);
  uint8_t codes[QK]{};
  unpack_nibbles(b.qs, codes);
  for (int j = 0; j < QK; ++j) to[j] = d * static_cast<float>(codes[j] - 8);
}

// x = d * q + m
struct BlockQ4_1 {
  static constexpr DType kDType = DType::Q4_1;
  static constexpr int kElements = QK;
  fp16_t d, m;
  uint8_t qs[QK / 2];
};
TANDEM_INLINE constexpr void dequantize_32(const BlockQ4_1& b, int, float* to) {
  const float d = fp16_to_fp32(b.d), m = fp16_to_fp32(b.m);
  uint8_t codes[QK]{};
  unpack_nibbles(b.qs, codes);
  for (int j = 0; j < QK; ++j) to[j] = d * static_cast<float>(codes[j]) + m;
}

// x = d * (q - 16); bit j of qh is bit 4 of element j.
struct BlockQ5_0 {
  static constexpr DType kDType = DType::Q5_0;
  static constexpr int kElements = QK;
  fp16_t d;
  uint8_t qh[4];
  uint8_t qs[QK / 2];
};
TANDEM_INLINE constexpr void dequantize_32(const BlockQ5_0& b, int, float* to) {
  const float d = fp16_to_fp32(b.d);
  uint8_t codes[QK]{};
  unpack_nibbles(b.qs, codes);
  add_fifth_bits(b.qh, codes);
  for (int j = 0; j < QK; ++j) to[j] = d * static_cast<float>(codes[j] - 16);
}

// x = d * q + m
struct BlockQ5_1 {
  static constexpr DType kDType = DType::Q5_1;
  static constexpr int kElements = QK;
  fp16_t d, m;
  uint8_t qh[4];
  uint8_t qs[QK / 2];
};
TANDEM_INLINE constexpr void dequantize_32(const BlockQ5_1& b, int, float* to) {
  const float d = fp16_to_fp32(b.d), m = fp16_to_fp32(b.m);
  uint8_t codes[QK]{};
  unpack_nibbles(b.qs, codes);
  add_fifth_bits(b.qh, codes);
  for (int j = 0; j < QK; ++j) to[j] = d * static_cast<float>(codes[j]) + m;
}

// x = d * q
struct BlockQ8_0 {
  static constexpr DType kDType = DType::Q8_0;
  static constexpr int kElements = QK;
  fp16_t d;
  int8_t qs[QK];
};
TANDEM_INLINE constexpr void dequantize_32(const BlockQ8_0& b, int, float* to) {
  const float d = fp16_to_fp32(b.d);
  for (int j = 0; j < QK; ++j) to[j] = d * static_cast<float>(b.qs[j]);
}

// ---- Super-blocks of 256, in sub-blocks of 16 or 32 with small integer scales ----

// x = d * sc * q - dmin * m; 16 sub-blocks of 16; scales[i]: low nibble sc, high nibble m.
// Element e of half h (128 each), 2-bit plane p = e / 32: qs[32 * h + e % 32] >> 2p.
struct BlockQ2_K {
  static constexpr DType kDType = DType::Q2_K;
  static constexpr int kElements = QK_K;
  uint8_t scales[QK_K / 16];
  uint8_t qs[QK_K / 4];
  fp16_t d, dmin;
};
TANDEM_INLINE constexpr void dequantize_32(const BlockQ2_K& b, int s, float* to) {
  const float d = fp16_to_fp32(b.d), dmin = fp16_to_fp32(b.dmin);
  const uint8_t* qs = b.qs + s / 4 * 32;
  for (int j = 0; j < 32; ++j) {
    const uint8_t packed = b.scales[2 * s + j / 16];
    const float scale = d * static_cast<float>(packed & 15), min = dmin * static_cast<float>(packed >> 4);
    to[j] = scale * static_cast<float>(qs[j] >> s % 4 * 2 & 3) - min;
  }
}

// x = d * (sc - 32) * (q - 4); q's low 2 bits as in Q2_K, bit 2 in hmask (bit 4h+p of byte e % 32);
// 16 six-bit scales packed in 12 bytes.
struct BlockQ3_K {
  static constexpr DType kDType = DType::Q3_K;
  static constexpr int kElements = QK_K;
  uint8_t hmask[QK_K / 8];
  uint8_t qs[QK_K / 4];
  uint8_t scales[12];
  fp16_t d;
};
// Returns scale i as a code 0..63: low four bits in nibble i / 8 of byte i % 8, high two bits in byte
// 8 + i % 4, shifted left by 2 * (i / 4).
TANDEM_INLINE constexpr int unpack_scale_q3_k(int i, const uint8_t* packed) {
  return (packed[i % 8] >> i / 8 * 4 & 15) | (packed[8 + i % 4] >> i / 4 * 2 & 3) << 4;
}
TANDEM_INLINE constexpr void dequantize_32(const BlockQ3_K& b, int s, float* to) {
  const float d = fp16_to_fp32(b.d);
  const uint8_t* qs = b.qs + s / 4 * 32;
  for (int half = 0; half < 2; ++half) {
    const float scale = d * static_cast<float>(unpack_scale_q3_k(2 * s + half, b.scales) - 32);
    for (int j = 16 * half; j < 16 * half + 16; ++j) {
      const int code = (qs[j] >> s % 4 * 2 & 3) | (b.hmask[j] >> s & 1) << 2;
      to[j] = scale * static_cast<float>(code - 4);
    }
  }
}

// Unpacks the six-bit scale and min of sub-block s (0..7) of Q4_K and Q5_K.
TANDEM_INLINE constexpr void unpack_scale_min_k4(int s, const uint8_t* packed, uint8_t* scale, uint8_t* min) {
  if (s < 4) {
    *scale = packed[s] & 63;
    *min = packed[s + 4] & 63;
  } else {
    *scale = static_cast<uint8_t>((packed[s + 4] & 0xf) | (packed[s - 4] >> 6) << 4);
    *min = static_cast<uint8_t>((packed[s + 4] >> 4) | (packed[s] >> 6) << 4);
  }
}

// x = d * sc * q - dmin * m; 8 sub-blocks of 32; six-bit sc and m packed in 12 bytes.
// Elements 64c..64c+31 are low nibbles of qs[32c..], 64c+32..64c+63 the high nibbles.
struct BlockQ4_K {
  static constexpr DType kDType = DType::Q4_K;
  static constexpr int kElements = QK_K;
  fp16_t d, dmin;
  uint8_t scales[12];
  uint8_t qs[QK_K / 2];
};
TANDEM_INLINE constexpr void dequantize_32(const BlockQ4_K& b, int s, float* to) {
  uint8_t sc = 0, m = 0;
  unpack_scale_min_k4(s, b.scales, &sc, &m);
  const float scale = fp16_to_fp32(b.d) * static_cast<float>(sc);
  const float min = fp16_to_fp32(b.dmin) * static_cast<float>(m);
  const uint8_t* qs = b.qs + s / 2 * 32;
  for (int j = 0; j < 32; ++j) to[j] = scale * static_cast<float>(qs[j] >> s % 2 * 4 & 15) - min;
}

// Like Q4_K; the fifth bit of the elements of chunk c is in bits 2c (low nibbles) and 2c+1 (high) of qh.
struct BlockQ5_K {
  static constexpr DType kDType = DType::Q5_K;
  static constexpr int kElements = QK_K;
  fp16_t d, dmin;
  uint8_t scales[12];
  uint8_t qh[QK_K / 8];
  uint8_t qs[QK_K / 2];
};
TANDEM_INLINE constexpr void dequantize_32(const BlockQ5_K& b, int s, float* to) {
  uint8_t sc = 0, m = 0;
  unpack_scale_min_k4(s, b.scales, &sc, &m);
  const float scale = fp16_to_fp32(b.d) * static_cast<float>(sc);
  const float min = fp16_to_fp32(b.dmin) * static_cast<float>(m);
  const uint8_t* qs = b.qs + s / 2 * 32;
  for (int j = 0; j < 32; ++j) {
    const int code = (qs[j] >> s % 2 * 4 & 15) | (b.qh[j] >> s & 1) << 4;
    to[j] = scale * static_cast<float>(code) - min;
  }
}

// x = d * sc * (q - 32); 16 sub-blocks of 16; ql holds the low 4 bits, qh the high 2.
struct BlockQ6_K {
  static constexpr DType kDType = DType::Q6_K;
  static constexpr int kElements = QK_K;
  uint8_t ql[QK_K / 2];
  uint8_t qh[QK_K / 4];
  int8_t scales[QK_K / 16];
  fp16_t d;
};
TANDEM_INLINE constexpr void dequantize_32(const BlockQ6_K& b, int s, float* to) {
  const float d = fp16_to_fp32(b.d);
  const uint8_t *ql = b.ql + s / 4 * 64 + s % 2 * 32, *qh = b.qh + s / 4 * 32;
  for (int j = 0; j < 32; ++j) {
    const float scale = d * static_cast<float>(b.scales[2 * s + j / 16]);
    const int code = (ql[j] >> s / 2 % 2 * 4 & 15) | (qh[j] >> s % 4 * 2 & 3) << 4;
    to[j] = scale * static_cast<float>(code - 32);
  }
}

// ---- Four bits that index a table of levels ----

// The 16 levels of IQ4_NL and IQ4_XS.
inline constexpr int8_t kvalues_iq4nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                             1,    13,   25,  38,  53,  69,  89,  113};
// Twice the value of each E2M1 code; e8m0_to_fp32_half() halves the scale to make up for it.
inline constexpr int8_t kvalues_mxfp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// The MXFP4 scale that goes with kvalues_mxfp4: 2^(e - 127) / 2, exact for every e (subnormal for e < 2).
TANDEM_INLINE constexpr float e8m0_to_fp32_half(uint8_t e) {
  return e < 2 ? std::bit_cast<float>(0x00200000u << e)
               : std::bit_cast<float>(static_cast<uint32_t>(e - 1) << 23);
}

// 32 nibbles in the order of Q4_0, looked up, times their scale.
TANDEM_INLINE constexpr void dequantize_levels(const uint8_t* qs, const int8_t* levels, float scale,
                                               float* to) {
  for (int j = 0; j < QK / 2; ++j) {
    to[j] = scale * levels[qs[j] & 15];
    to[j + QK / 2] = scale * levels[qs[j] >> 4];
  }
}

// x = d * kvalues_iq4nl[q]; nibble order of Q4_0.
struct BlockIQ4_NL {
  static constexpr DType kDType = DType::IQ4_NL;
  static constexpr int kElements = QK;
  fp16_t d;
  uint8_t qs[QK / 2];
};
TANDEM_INLINE constexpr void dequantize_32(const BlockIQ4_NL& b, int, float* to) {
  dequantize_levels(b.qs, kvalues_iq4nl, fp16_to_fp32(b.d), to);
}

// x = d * (sc - 32) * kvalues_iq4nl[q]; 8 sub-blocks of 32.
// sc: low 4 bits in scales_l, high 2 bits in scales_h.
struct BlockIQ4_XS {
  static constexpr DType kDType = DType::IQ4_XS;
  static constexpr int kElements = QK_K;
  fp16_t d;
  uint16_t scales_h;
  uint8_t scales_l[QK_K / 64];
  uint8_t qs[QK_K / 2];
};
TANDEM_INLINE constexpr void dequantize_32(const BlockIQ4_XS& b, int s, float* to) {
  const int sc = (b.scales_l[s / 2] >> s % 2 * 4 & 15) | (b.scales_h >> 2 * s & 3) << 4;
  dequantize_levels(b.qs + 16 * s, kvalues_iq4nl, fp16_to_fp32(b.d) * static_cast<float>(sc - 32), to);
}

// x = 2^(e - 127) * fp4(q); e is an E8M0 exponent, fp4 is E2M1; nibble order of Q4_0.
struct BlockMXFP4 {
  static constexpr DType kDType = DType::MXFP4;
  static constexpr int kElements = QK;
  uint8_t e;
  uint8_t qs[QK / 2];
};
TANDEM_INLINE constexpr void dequantize_32(const BlockMXFP4& b, int, float* to) {
  dequantize_levels(b.qs, kvalues_mxfp4, e8m0_to_fp32_half(b.e), to);
}

// An unsigned E4M3 scale, halved as for MXFP4; bit 7 is not used. NaN, code 127, gives NaN.
TANDEM_INLINE constexpr float e4m3_to_fp32_half(uint8_t code) {
  const uint32_t exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 127) == 127) return std::bit_cast<float>(0x7fc00000u);
  if (exponent == 0) return static_cast<float>(mantissa) * 0x1p-10f;
  return std::bit_cast<float>((exponent + 119) << 23 | mantissa << 20);
}

// kvalues_mxfp4[code], from a word of eight nibbles.
TANDEM_INLINE constexpr int fp4_doubled(uint32_t code) {
  const int level = static_cast<int>(0xc8643210u >> 4 * (code & 7) & 15);
  return code & 8 ? -level : level;
}

// x = d * fp4(q) with an E4M3 scale d for 16 elements: low nibbles are elements 0..7 of them, high ones 8..15.
struct BlockNVFP4 {
  static constexpr DType kDType = DType::NVFP4;
  static constexpr int kElements = 64;
  uint8_t d[4];
  uint8_t qs[32];
};
TANDEM_INLINE constexpr void dequantize_32(const BlockNVFP4& b, int s, float* to) {
  for (int half = 0; half < 2; ++half, to += 16) {
    const float scale = e4m3_to_fp32_half(b.d[2 * s + half]);
    const uint8_t* qs = b.qs + 16 * s + 8 * half;
    for (int j = 0; j < 8; ++j) {
      to[j] = scale * static_cast<float>(fp4_doubled(qs[j] & 15u));
      to[j + 8] = scale * static_cast<float>(fp4_doubled(qs[j] >> 4));
    }
  }
}

// ---- One bit, and ternary ----

// x = d or -d, by bit j of qs.
struct BlockQ1_0 {
  static constexpr DType kDType = DType::Q1_0;
  static constexpr int kElements = 128;
  fp16_t d;
  uint8_t qs[16];
};
TANDEM_INLINE constexpr void dequantize_32(const BlockQ1_0& b, int s, float* to) {
  const float d = fp16_to_fp32(b.d);
  const uint8_t* qs = b.qs + 4 * s;
  for (int j = 0; j < 32; ++j) to[j] = qs[j / 8] >> j % 8 & 1 ? d : -d;
}

// x = d * (q - 1), q in 0..2: the ternary digits of bytes, which are fractions of 256: digit n of byte v is
// (v * 3^n mod 256) * 3 / 256. Five digits of 32 bytes, five of 16, then four of the 4 bytes of qh.
struct BlockTQ1_0 {
  static constexpr DType kDType = DType::TQ1_0;
  static constexpr int kElements = QK_K;
  uint8_t qs[48];
  uint8_t qh[4];
  fp16_t d;
};
TANDEM_INLINE constexpr void dequantize_32(const BlockTQ1_0& b, int s, float* to) {
  const float d = fp16_to_fp32(b.d);
  for (int j = 0; j < 32; ++j) {
    const int e = 32 * s + j;
    const int digit = e < 160 ? s : e < 240 ? (e - 160) / 16 : (e - 240) / 4;
    const uint32_t byte = e < 160 ? b.qs[j] : e < 240 ? b.qs[32 + e % 16] : b.qh[e % 4];
    const uint32_t power = digit == 0 ? 1 : digit == 1 ? 3 : digit == 2 ? 9 : digit == 3 ? 27 : 81;
    const uint32_t q = (byte * power & 255) * 3 >> 8;
    to[j] = d * static_cast<float>(static_cast<int>(q) - 1);
  }
}

// x = d * (q - 1), q in 0..2; the 2-bit planes are those of Q2_K.
struct BlockTQ2_0 {
  static constexpr DType kDType = DType::TQ2_0;
  static constexpr int kElements = QK_K;
  uint8_t qs[QK_K / 4];
  fp16_t d;
};
TANDEM_INLINE constexpr void dequantize_32(const BlockTQ2_0& b, int s, float* to) {
  const float d = fp16_to_fp32(b.d);
  const uint8_t* qs = b.qs + s / 4 * 32;
  for (int j = 0; j < 32; ++j) to[j] = d * static_cast<float>((qs[j] >> s % 4 * 2 & 3) - 1);
}

// ---- All of them ----

template <class... Blocks>
struct BlockList {
  // Calls fn.template operator()<Block>() for the dtype's block; false when it has none.
  template <class Fn>
  static constexpr bool visit(DType dtype, Fn&& fn) {
    return ((dtype == Blocks::kDType && (fn.template operator()<Blocks>(), true)) || ...);
  }
};

// The one list of the formats that can be read; dtype.cpp takes their functions from here.
using BlockFormats = BlockList<BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0, BlockQ2_K, BlockQ3_K,
                               BlockQ4_K, BlockQ5_K, BlockQ6_K, BlockIQ4_NL, BlockIQ4_XS, BlockMXFP4,
                               BlockTQ2_0, BlockTQ1_0, BlockQ1_0, BlockNVFP4, BlockIQ2_XXS, BlockIQ2_XS,
                               BlockIQ2_S, BlockIQ3_XXS, BlockIQ3_S, BlockIQ1_S, BlockIQ1_M>;

// n elements of x to n / kElements blocks; importance: [n] weights >= 0 of the squared errors, or null.
// A format without a quantizer is one that can only be read.
namespace quants {
void quantize(const float* x, BlockQ4_0* to, int64_t n, const float* importance);
void quantize(const float* x, BlockQ4_1* to, int64_t n, const float* importance);
void quantize(const float* x, BlockQ5_0* to, int64_t n, const float* importance);
void quantize(const float* x, BlockQ5_1* to, int64_t n, const float* importance);
void quantize(const float* x, BlockQ8_0* to, int64_t n, const float* importance);
void quantize(const float* x, BlockQ2_K* to, int64_t n, const float* importance);
void quantize(const float* x, BlockQ3_K* to, int64_t n, const float* importance);
void quantize(const float* x, BlockQ4_K* to, int64_t n, const float* importance);
void quantize(const float* x, BlockQ5_K* to, int64_t n, const float* importance);
void quantize(const float* x, BlockQ6_K* to, int64_t n, const float* importance);
void quantize(const float* x, BlockIQ4_NL* to, int64_t n, const float* importance);
void quantize(const float* x, BlockIQ4_XS* to, int64_t n, const float* importance);
void quantize(const float* x, BlockMXFP4* to, int64_t n, const float* importance);
void quantize(const float* x, BlockTQ2_0* to, int64_t n, const float* importance);
void quantize(const float* x, BlockTQ1_0* to, int64_t n, const float* importance);
void quantize(const float* x, BlockQ1_0* to, int64_t n, const float* importance);
void quantize(const float* x, BlockNVFP4* to, int64_t n, const float* importance);
void quantize(const float* x, BlockIQ2_XXS* to, int64_t n, const float* importance);
void quantize(const float* x, BlockIQ2_XS* to, int64_t n, const float* importance);
void quantize(const float* x, BlockIQ2_S* to, int64_t n, const float* importance);
void quantize(const float* x, BlockIQ3_XXS* to, int64_t n, const float* importance);
void quantize(const float* x, BlockIQ3_S* to, int64_t n, const float* importance);
void quantize(const float* x, BlockIQ1_S* to, int64_t n, const float* importance);
void quantize(const float* x, BlockIQ1_M* to, int64_t n, const float* importance);
}  // namespace quants

}  // namespace tandem
