// Block layouts of the quantized dtypes, byte for byte as the GGUF format stores them. `d` and `m`/`dmin` are
// IEEE halves. Value formulas: j counts elements inside the block, sub-blocks are 16 or 32 elements wide.
#pragma once

#include <cstdint>

#include "base/fp16.h"

namespace tandem {

inline constexpr int QK = 32;     // elements in a block of the simple types
inline constexpr int QK_K = 256;  // elements in a super-block of the K types

// x = d * (q - 8). Low nibbles are elements 0..15, high nibbles 16..31.
struct BlockQ4_0 {
  fp16_t d;
  uint8_t qs[QK / 2];
};
// x = d * q + m
struct BlockQ4_1 {
  fp16_t d, m;
  uint8_t qs[QK / 2];
};
// x = d * (q - 16); bit j of qh is bit 4 of element j.
struct BlockQ5_0 {
  fp16_t d;
  uint8_t qh[4];
  uint8_t qs[QK / 2];
};
// x = d * q + m
struct BlockQ5_1 {
  fp16_t d, m;
  uint8_t qh[4];
  uint8_t qs[QK / 2];
};
// x = d * q
struct BlockQ8_0 {
  fp16_t d;
  int8_t qs[QK];
};

// x = d * sc * q - dmin * m; 16 sub-blocks of 16; scales[s]: low nibble sc, high nibble m.
// Element e of half h (128 each), 2-bit plane p = e / 32: qs[32 * h + e % 32] >> 2p.
struct BlockQ2_K {
  uint8_t scales[QK_K / 16];
  uint8_t qs[QK_K / 4];
  fp16_t d, dmin;
};
// x = d * (sc - 32) * (q - 4); q's low 2 bits as in Q2_K, bit 2 in hmask (bit 4h+p of byte e % 32);
// 16 six-bit scales packed in 12 bytes.
struct BlockQ3_K {
  uint8_t hmask[QK_K / 8];
  uint8_t qs[QK_K / 4];
  uint8_t scales[12];
  fp16_t d;
};
// x = d * sc * q - dmin * m; 8 sub-blocks of 32; six-bit sc and m packed in 12 bytes.
// Elements 64c..64c+31 are low nibbles of qs[32c..], 64c+32..64c+63 the high nibbles.
struct BlockQ4_K {
  fp16_t d, dmin;
  uint8_t scales[12];
  uint8_t qs[QK_K / 2];
};
// Like Q4_K; the fifth bit of the elements of chunk c is in bits 2c (low nibbles) and 2c+1 (high) of qh.
struct BlockQ5_K {
  fp16_t d, dmin;
  uint8_t scales[12];
  uint8_t qh[QK_K / 8];
  uint8_t qs[QK_K / 2];
};
// x = d * sc * (q - 32); 16 sub-blocks of 16; ql holds the low 4 bits, qh the high 2.
struct BlockQ6_K {
  uint8_t ql[QK_K / 2];
  uint8_t qh[QK_K / 4];
  int8_t scales[QK_K / 16];
  fp16_t d;
};

// x = d * kvalues_iq4nl[q]; nibble order of Q4_0.
struct BlockIQ4_NL {
  fp16_t d;
  uint8_t qs[QK / 2];
};
// x = d * (sc - 32) * kvalues_iq4nl[q]; 8 sub-blocks of 32.
// sc: low 4 bits in scales_l, high 2 bits in scales_h.
struct BlockIQ4_XS {
  fp16_t d;
  uint16_t scales_h;
  uint8_t scales_l[QK_K / 64];
  uint8_t qs[QK_K / 2];
};
// x = 2^(e - 127) * fp4(q); e is an E8M0 exponent, fp4 is E2M1; nibble order of Q4_0.
struct BlockMXFP4 {
  uint8_t e;
  uint8_t qs[QK / 2];
};

static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20);
static_assert(sizeof(BlockQ5_0) == 22 && sizeof(BlockQ5_1) == 24 && sizeof(BlockQ8_0) == 34);
static_assert(sizeof(BlockQ2_K) == 84 && sizeof(BlockQ3_K) == 110 && sizeof(BlockQ4_K) == 144);
static_assert(sizeof(BlockQ5_K) == 176 && sizeof(BlockQ6_K) == 210);
static_assert(sizeof(BlockIQ4_NL) == 18 && sizeof(BlockIQ4_XS) == 136 && sizeof(BlockMXFP4) == 17);

// The 16 levels of IQ4_NL and IQ4_XS.
inline constexpr int8_t kvalues_iq4nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                             1,    13,   25,  38,  53,  69,  89,  113};
// Twice the value of each E2M1 code; e8m0_to_fp32_half() halves the scale to make up for it.
inline constexpr int8_t kvalues_mxfp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// The MXFP4 scale that goes with kvalues_mxfp4: 2^(e - 127) / 2, exact for every e (subnormal for e < 2).
TANDEM_INLINE float e8m0_to_fp32_half(uint8_t e) {
  return e < 2 ? std::bit_cast<float>(0x00200000u << e)
               : std::bit_cast<float>(static_cast<uint32_t>(e - 1) << 23);
}

// Unpacks the six-bit scale and min of sub-block s (0..7) of Q4_K and Q5_K.
TANDEM_INLINE void unpack_scale_min_k4(int s, const uint8_t* packed, uint8_t* scale, uint8_t* min) {
  if (s < 4) {
    *scale = packed[s] & 63;
    *min = packed[s + 4] & 63;
  } else {
    *scale = static_cast<uint8_t>((packed[s + 4] & 0xf) | (packed[s - 4] >> 6) << 4);
    *min = static_cast<uint8_t>((packed[s + 4] >> 4) | (packed[s] >> 6) << 4);
  }
}

}  // namespace tandem
