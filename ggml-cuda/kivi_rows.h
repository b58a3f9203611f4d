// Rows of the grouped cache types (gguf/kivi.h) as floats, as attention_unpack.h has those of the others. Open blocks have
// rows of F16 and are read as these. Codes and scales are read in words of four bytes or more, to which groups and rows are
// aligned. A code times a half is exact, so values are those of gguf/kivi.h, bit for bit, however they are contracted.
#pragma once

#include "ggml-cuda/attention_unpack.h"
#include "gguf/kivi.h"

namespace tandem::cuda {

// Bytes of 32 codes.
TANDEM_HD constexpr int code_bytes(int bits) {
  return 4 * bits;
}
// Bytes of a group's scales and minimums, and of a token's codes in it.
TANDEM_HD constexpr int group_scale_bytes(int head_dim) {
  return 4 * head_dim;
}
TANDEM_HD constexpr int token_code_bytes(int bits, int head_dim) {
  return head_dim / QK * code_bytes(bits);
}

// As a float, without a conversion, of which a GPU makes few at a time: the code in the last bits of 2^23.
TANDEM_HD inline float code_to_float(uint32_t code) {
  return std::bit_cast<float>(0x4b000000u | code) - 8388608.0f;
}

// Codes 8 * chunk .. 8 * chunk + 7, of a token's codes.
template <int kBits>
TANDEM_HD inline void read_codes(const uint8_t* codes, int chunk, float (&x)[8]) {
  const uint8_t* from = codes + code_bytes(kBits) * (chunk / 4) + (kBits == 4 ? 8 * (chunk % 2) : 0);
  const int shift = kBits == 4 ? 4 * (chunk % 4 / 2) : 2 * (chunk % 4);
  for (int i = 0; i < 8; ++i) {
    const uint32_t word = load_as<uint32_t>(from + i / 4 * 4) >> shift;
    x[i] = code_to_float(word >> 8 * (i % 4) & ((1u << kBits) - 1));
  }
}

// Scale and minimum of eight channels of a group.
struct ChannelScales {
  float d[8], m[8];

  TANDEM_HD void load(const uint8_t* group, int head_dim, int chunk) {
    ReadF16::eight(group, chunk, d);
    ReadF16::eight(group + 2 * head_dim, chunk, m);
  }
  TANDEM_HD void apply(float (&x)[8]) const {
    for (int i = 0; i < 8; ++i) x[i] = d[i] * x[i] + m[i];
  }
};

// A row of values: blocks of scale, minimum and 32 codes.
template <int kBits>
struct ReadKiviValues {
  TANDEM_HD static void eight(const uint8_t* row, int chunk, float (&x)[8]) {
    const uint8_t* block = row + (4 + code_bytes(kBits)) * (chunk / 4);
    const uint32_t halves = load_as<uint32_t>(block);
    const float d = half_to_float(static_cast<fp16_t>(halves & 0xffff)),
                m = half_to_float(static_cast<fp16_t>(halves >> 16));
    read_codes<kBits>(block + 4, chunk % 4, x);
    for (int i = 0; i < 8; ++i) x[i] = d * x[i] + m;
  }
};

// Codes of keys, whose scales are apart from them.
template <int kBits>
struct ReadKiviKeys {};

// What a pool of a cache has.
enum class Half : int { keys, values };

// Eight elements of a token's row of one head in a closed group: keys or values, of KIVI4 or KIVI2.
TANDEM_HD inline void read_group_eight(DType dtype, Half half, const uint8_t* group, int token, int head_dim,
                                       int chunk, float (&x)[8]) {
  const int bits = kivi_bits(dtype);
  if (half == Half::keys) {
    const uint8_t* codes = group + group_scale_bytes(head_dim) + token * token_code_bytes(bits, head_dim);
    bits == 4 ? read_codes<4>(codes, chunk, x) : read_codes<2>(codes, chunk, x);
    ChannelScales scales;
    scales.load(group, head_dim, chunk);
    return scales.apply(x);
  }
  const uint8_t* row = group + token * (4 + code_bytes(bits)) * (head_dim / QK);
  bits == 4 ? ReadKiviValues<4>::eight(row, chunk, x) : ReadKiviValues<2>::eight(row, chunk, x);
}

// The same, one element.
TANDEM_HD inline float read_group_one(DType dtype, Half half, const uint8_t* group, int token, int head_dim,
                                      int i) {
  const int bits = kivi_bits(dtype), lane = i % QK;
  const auto code_at = [&](const uint8_t* codes) {
    return bits == 4 ? codes[lane % 16] >> 4 * (lane / 16) & 15 : codes[lane % 8] >> 2 * (lane / 8) & 3;
  };
  const auto value = [](const uint8_t* d, const uint8_t* m, int code) {
    return half_to_float(load_as<fp16_t>(d)) * static_cast<float>(code) + half_to_float(load_as<fp16_t>(m));
  };
  if (half == Half::keys) {
    const uint8_t* codes = group + group_scale_bytes(head_dim) + token * token_code_bytes(bits, head_dim);
    return value(group + 2 * i, group + 2 * (head_dim + i), code_at(codes + code_bytes(bits) * (i / QK)));
  }
  const uint8_t* block = group + (4 + code_bytes(bits)) * (token * (head_dim / QK) + i / QK);
  return value(block, block + 2, code_at(block + 4));
}

}  // namespace tandem::cuda
