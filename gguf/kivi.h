// The cache types KIVI4 and KIVI2 (arXiv 2402.02750): codes of 4 and 2 bits with a scale and a minimum, x = d * code + m.
// Keys have outliers in some channels, so 32 tokens of a channel share d and m: a group of keys is stored at once. Values
// have none, so 32 channels of a token share them: a row of values is stored by itself, as rows of other types are.
//
// A group of keys, of 32 tokens and head_dim channels (a multiple of 32):
//   d     [head_dim] f16
//   m     [head_dim] f16
//   codes [32 tokens][head_dim / 32][4 * bits bytes]
// Bytes of a group are those of 32 rows of values. 32 codes of 4 bits are packed as Q4_0's; of 2 bits, byte j has those
// of channels j, j + 8, j + 16 and j + 24, the first in its low bits.
//
// No file has these types. The functions throw nothing; NaN and infinities do not crash, but give meaningless values.
#pragma once

#include "gguf/blocks.h"

namespace tandem {

inline constexpr int64_t kKiviGroup = 32;  // tokens of a group of keys

// Whether it is KIVI4 or KIVI2.
constexpr bool is_kivi(DType dtype) {
  return dtype == DType::KIVI4 || dtype == DType::KIVI2;
}
constexpr int kivi_bits(DType dtype) {
  return dtype == DType::KIVI4 ? 4 : 2;
}

// 32 codes of 2 bits.
TANDEM_INLINE constexpr void unpack_pairs(const uint8_t* qs, uint8_t* codes) {
  for (int j = 0; j < QK / 4; ++j) {
    for (int part = 0; part < 4; ++part) codes[j + part * QK / 4] = qs[j] >> (2 * part) & 3;
  }
}

// x = d * q + m
struct BlockKivi2 {
  static constexpr DType kDType = DType::KIVI2;
  static constexpr int kElements = QK;
  fp16_t d, m;
  uint8_t qs[QK / 4];
};
TANDEM_INLINE constexpr void dequantize_32(const BlockKivi2& b, int, float* to) {
  const float d = fp16_to_fp32(b.d), m = fp16_to_fp32(b.m);
  uint8_t codes[QK]{};
  unpack_pairs(b.qs, codes);
  for (int j = 0; j < QK; ++j) to[j] = d * static_cast<float>(codes[j]) + m;
}

// Rows of values. n is a multiple of 32. The quantizers take no importance.
void dequantize_kivi4(const void* from, float* to, int64_t n);
void dequantize_kivi2(const void* from, float* to, int64_t n);
void quantize_kivi4(const float* from, void* to, int64_t n, const float* importance);
void quantize_kivi2(const float* from, void* to, int64_t n, const float* importance);

// Groups of keys. keys: [32, head_dim].
void quantize_key_group(DType dtype, const float* keys, void* to, int64_t head_dim);
// Rows first .. first + n - 1 of a group, to [n, head_dim].
void dequantize_key_group(DType dtype, const void* from, int64_t first, int64_t n, float* to,
                          int64_t head_dim);

}  // namespace tandem
