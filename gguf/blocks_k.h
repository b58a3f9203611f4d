// Bit packing of the K types: converts 256 codes (one per byte) and the scales of a super-block to its bit
// planes; blocks.h reads them. Internal to gguf/ and tests.
#pragma once

#include <cstdint>
#include <cstring>

#include "gguf/blocks.h"

namespace tandem::quants {

// codes [256]: the raw bits, before any offset (Q3_K: q = code - 4, Q6_K: q = code - 32).

// Bits of element e = 128 h + 32 p + j: in byte 32 h + j of qs, shifted left by 2 p.
inline void pack_two_bits(const uint8_t* codes, uint8_t* qs) {
  uint8_t bytes[QK_K / 4];
  for (int half = 0; half < 2; ++half) {
    const uint8_t* from = codes + 128 * half;
    for (int j = 0; j < 32; ++j) {
      bytes[32 * half + j] = static_cast<uint8_t>((from[j] & 3) | (from[32 + j] & 3) << 2 |
                                                  (from[64 + j] & 3) << 4 | (from[96 + j] & 3) << 6);
    }
  }
  std::memcpy(qs, bytes, sizeof bytes);
}

// Bit `position` of the code of element e = 32 s + j: bit s of byte j.
// Packs into a local array, so that the compiler knows that input and output do not overlap.
inline void pack_bit_plane(const uint8_t* codes, int position, uint8_t* plane) {
  uint8_t bytes[QK_K / 8] = {};
  for (int b = 0; b < 8; ++b) {
    for (int j = 0; j < 32; ++j) {
      bytes[j] = static_cast<uint8_t>(bytes[j] | (codes[32 * b + j] >> position & 1) << b);
    }
  }
  std::memcpy(plane, bytes, sizeof bytes);
}

// Bits of element e = 2 w c + w h + j: nibble h of byte w c + j of qs; w = 32 (Q4_K, Q5_K) or 64 (Q6_K).
inline void pack_four_bits(const uint8_t* codes, int w, uint8_t* qs) {
  uint8_t bytes[QK_K / 2];
  for (int at = 0; at < QK_K / 2; at += w) {
    for (int j = 0; j < w; ++j) {
      bytes[at + j] = static_cast<uint8_t>((codes[2 * at + j] & 15) | codes[2 * at + w + j] << 4);
    }
  }
  std::memcpy(qs, bytes, sizeof bytes);
}

inline void pack_codes(const uint8_t* codes, BlockQ2_K& block) {
  pack_two_bits(codes, block.qs);
}

inline void pack_codes(const uint8_t* codes, BlockQ3_K& block) {
  pack_two_bits(codes, block.qs);
  pack_bit_plane(codes, 2, block.hmask);
}

inline void pack_codes(const uint8_t* codes, BlockQ4_K& block) {
  pack_four_bits(codes, 32, block.qs);
}

inline void pack_codes(const uint8_t* codes, BlockQ5_K& block) {
  pack_four_bits(codes, 32, block.qs);
  pack_bit_plane(codes, 4, block.qh);
}

inline void pack_codes(const uint8_t* codes, BlockQ6_K& block) {
  uint8_t high[QK_K];
  pack_four_bits(codes, 64, block.ql);
  for (int e = 0; e < QK_K; ++e) high[e] = codes[e] >> 4;
  pack_two_bits(high, block.qh);
}

// The inverse of unpack_scale_q3_k for all 16 scales of Q3_K, which are codes 0..63 (scale = code - 32).
inline void pack_scales_q3_k(const uint8_t* scales, uint8_t* packed) {
  std::memset(packed, 0, 12);
  for (int s = 0; s < 16; ++s) {
    packed[s % 8] = static_cast<uint8_t>(packed[s % 8] | (scales[s] & 15) << s / 8 * 4);
    packed[8 + s % 4] = static_cast<uint8_t>(packed[8 + s % 4] | scales[s] >> 4 << s / 4 * 2);
  }
}

// The inverse of unpack_scale_min_k4 for all eight sub-blocks; scales and mins [8] are 0..63.
inline void pack_scale_min_k4(const uint8_t* scales, const uint8_t* mins, uint8_t* packed) {
  for (int s = 0; s < 4; ++s) {
    packed[s] = static_cast<uint8_t>(scales[s] | scales[s + 4] >> 4 << 6);
    packed[s + 4] = static_cast<uint8_t>(mins[s] | mins[s + 4] >> 4 << 6);
    packed[s + 8] = static_cast<uint8_t>((scales[s + 4] & 15) | (mins[s + 4] & 15) << 4);
  }
}

}  // namespace tandem::quants
