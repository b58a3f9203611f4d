// Eight consecutive elements of a cached row as floats, for each dtype a cache may have. A row is read in
// pieces that it is aligned to: 16 bytes for plain dtypes (head dims are multiples of eight), 2 bytes for
// blocks of 18 to 34 bytes. Values are those of gguf/quants.h, bit for bit.
#pragma once

#include <cstring>
#include <functional>

#include "ggml-cuda/portable.h"
#include "gguf/blocks.h"
#include "gguf/dtype.h"

namespace tandem::cuda {

constexpr uint32_t packed_levels(const int8_t* levels) {
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word |= static_cast<uint32_t>(static_cast<uint8_t>(levels[i])) << 8 * i;
  return word;
}

struct alignas(16) Words4 {
  uint32_t w[4];
};

template <class T>
TANDEM_HD inline T load_as(const uint8_t* from) {
#ifdef __CUDA_ARCH__
  return *reinterpret_cast<const T*>(from);
#else
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
#endif
}

// The signed bytes of a pair, the first in the low half.
TANDEM_HD inline int low_byte(uint16_t pair) {
  return static_cast<int8_t>(pair & 0xff);
}
TANDEM_HD inline int high_byte(uint16_t pair) {
  return static_cast<int8_t>(pair >> 8);
}

// Elements 8 * chunk .. 8 * chunk + 7 of a row.
struct ReadF32 {
  TANDEM_HD static void eight(const uint8_t* row, int chunk, float (&x)[8]) {
    for (int half = 0; half < 2; ++half) {
      const Words4 words = load_as<Words4>(row + 32 * chunk + 16 * half);
      for (int i = 0; i < 4; ++i) x[4 * half + i] = std::bit_cast<float>(words.w[i]);
    }
  }
};

struct ReadF16 {
  TANDEM_HD static void eight(const uint8_t* row, int chunk, float (&x)[8]) {
    const Words4 words = load_as<Words4>(row + 16 * chunk);
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = half_to_float(static_cast<fp16_t>(words.w[i] & 0xffff));
      x[2 * i + 1] = half_to_float(static_cast<fp16_t>(words.w[i] >> 16));
    }
  }
};

struct ReadBF16 {
  TANDEM_HD static void eight(const uint8_t* row, int chunk, float (&x)[8]) {
    const Words4 words = load_as<Words4>(row + 16 * chunk);
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = std::bit_cast<float>(words.w[i] << 16);
      x[2 * i + 1] = std::bit_cast<float>(words.w[i] & 0xffff0000u);
    }
  }
};

// BlockQ8_0: the scale, then 32 signed bytes.
struct ReadQ8_0 {
  TANDEM_HD static void eight(const uint8_t* row, int chunk, float (&x)[8]) {
    const uint8_t* block = row + 34 * (chunk / 4);
    const float d = half_to_float(load_as<fp16_t>(block));
    for (int i = 0; i < 4; ++i) {
      const uint16_t pair = load_as<uint16_t>(block + 2 + 8 * (chunk % 4) + 2 * i);
      x[2 * i] = d * static_cast<float>(low_byte(pair));
      x[2 * i + 1] = d * static_cast<float>(high_byte(pair));
    }
  }
};

// BlockQ4_0: the scale, then 16 bytes whose low nibbles are elements 0..15 and high nibbles 16..31, less 8.
struct ReadQ4_0 {
  TANDEM_HD static void eight(const uint8_t* row, int chunk, float (&x)[8]) {
    const uint8_t* block = row + 18 * (chunk / 4);
    const float d = half_to_float(load_as<fp16_t>(block));
    const int shift = chunk % 4 >= 2 ? 4 : 0;
    for (int i = 0; i < 4; ++i) {
      const int pair = load_as<uint16_t>(block + 2 + 8 * (chunk % 2) + 2 * i) >> shift;
      x[2 * i] = d * static_cast<float>((pair & 0xf) - 8);
      x[2 * i + 1] = d * static_cast<float>((pair >> 8 & 0xf) - 8);
    }
  }
};

// Where the codes of the other block types are, and what a code is worth.
struct BlockLayout {
  int bytes, codes_at;
  bool fifth_bits;  // four bytes before the codes
  bool min;         // a second half after the scale, added
  int offset;       // subtracted from the code
};
TANDEM_HD constexpr BlockLayout block_layout(DType dtype) {
  switch (dtype) {
    case DType::Q4_1: return {20, 4, false, true, 0};
    case DType::Q5_0: return {22, 6, true, false, 16};
    case DType::Q5_1: return {24, 8, true, true, 0};
    default: return {18, 2, false, false, 0};  // IQ4_NL
  }
}

TANDEM_HD inline int iq4_level(int code) {
  constexpr uint32_t kWords[4] = {packed_levels(kvalues_iq4nl), packed_levels(kvalues_iq4nl + 4),
                                  packed_levels(kvalues_iq4nl + 8), packed_levels(kvalues_iq4nl + 12)};
  const uint32_t low = code & 4 ? kWords[1] : kWords[0], high = code & 4 ? kWords[3] : kWords[2];
  return static_cast<int8_t>((code & 8 ? high : low) >> 8 * (code & 3) & 0xff);
}

// Element i of a row of Q4_1, Q5_0, Q5_1 or IQ4_NL.
TANDEM_HD inline float read_block_element(DType dtype, const uint8_t* row, int i) {
  const BlockLayout layout = block_layout(dtype);
  const uint8_t* block = row + layout.bytes * (i / 32);
  const int j = i % 32, byte = block[layout.codes_at + j % 16];
  int code = j < 16 ? byte & 0xf : byte >> 4;
  if (layout.fifth_bits) code |= (block[layout.codes_at - 4 + j / 8] >> j % 8 & 1) << 4;
  const int level = dtype == DType::IQ4_NL ? iq4_level(code) : code - layout.offset;
  const float scaled = mul_rn(half_to_float(load_as<fp16_t>(block)), static_cast<float>(level));
  return layout.min ? add_rn(scaled, half_to_float(load_as<fp16_t>(block + 2))) : scaled;
}

TANDEM_HD inline void read_eight(DType dtype, const uint8_t* row, int chunk, float (&x)[8]) {
  switch (dtype) {
    case DType::F16: return ReadF16::eight(row, chunk, x);
    case DType::BF16: return ReadBF16::eight(row, chunk, x);
    case DType::Q8_0: return ReadQ8_0::eight(row, chunk, x);
    case DType::Q4_0: return ReadQ4_0::eight(row, chunk, x);
    case DType::Q4_1:
    case DType::Q5_0:
    case DType::Q5_1:
    case DType::IQ4_NL:
      for (int i = 0; i < 8; ++i) x[i] = read_block_element(dtype, row, 8 * chunk + i);
      return;
    default: return ReadF32::eight(row, chunk, x);
  }
}

// One element, at any offset; for plain dtypes of any head dim.
TANDEM_HD inline float read_one(DType dtype, const uint8_t* row, int i) {
  switch (dtype) {
    case DType::F16: return half_to_float(load_as<fp16_t>(row + 2 * i));
    case DType::BF16: return bfloat_to_float(load_as<bf16_t>(row + 2 * i));
    case DType::Q8_0: {
      const uint8_t* block = row + 34 * (i / 32);
      return half_to_float(load_as<fp16_t>(block)) *
             static_cast<float>(static_cast<int8_t>(block[2 + i % 32]));
    }
    case DType::Q4_0: {
      const uint8_t* block = row + 18 * (i / 32);
      const int byte = block[2 + i % 16];
      const int level = (i % 32 < 16 ? byte & 0xf : byte >> 4) - 8;
      return half_to_float(load_as<fp16_t>(block)) * static_cast<float>(level);
    }
    case DType::Q4_1:
    case DType::Q5_0:
    case DType::Q5_1:
    case DType::IQ4_NL: return read_block_element(dtype, row, i);
    default: return load_as<float>(row + 4 * i);
  }
}

// ---- rows as pairs of half floats, the first in the low half: each element's product is rounded once

// op of both halves, on the host.
template <class Op>
inline uint32_t each_half(uint32_t a, uint32_t b, const Op& op) {
  const auto half = [&](int i) {
    const float x = fp16_to_fp32(static_cast<fp16_t>(a >> 16 * i)), y = fp16_to_fp32(static_cast<fp16_t>(b >> 16 * i));
    return static_cast<uint32_t>(fp32_to_fp16(op(x, y)));
  };
  return half(0) | half(1) << 16;
}
// a - b and a * b of both halves.
TANDEM_HD inline uint32_t sub_halves(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
  uint32_t y;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
#else
  return each_half(a, b, std::minus<float>());
#endif
}
TANDEM_HD inline uint32_t mul_halves(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
  uint32_t y;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
#else
  return each_half(a, b, std::multiplies<float>());
#endif
}
// One instruction, which the compiler does not find.
TANDEM_HD inline uint32_t and_or(uint32_t a, uint32_t mask, uint32_t more) {
#ifdef __CUDA_ARCH__
  uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(a), "r"(mask), "r"(more));
  return y;
#else
  return (a & mask) | more;
#endif
}
TANDEM_HD inline uint32_t scale_pair(const uint8_t* block) {
  return load_as<uint16_t>(block) * 0x10001u;
}
inline constexpr uint32_t k1024s = 0x64006400;  // 1024, whose last ten bits are a whole number

// A unit of a row of Q8_0 is eight elements, and of Q4_0 the 16 of eight bytes: low nibbles, then high ones. `eights`
// of them are together, from column_of() on.
struct HalvesOfQ8_0 {
  static constexpr int kElements = 8, kEights = 1;
  TANDEM_HD static int column_of(int unit, int) { return 8 * unit; }
  TANDEM_HD static void unpack(const uint8_t* row, int unit, uint32_t (&pairs)[1][4]) {
    const uint8_t* block = row + 34 * (unit / 4);
    const uint32_t scale = scale_pair(block);
    for (int i = 0; i < 4; ++i) {
      const uint32_t codes = load_as<uint16_t>(block + 2 + 8 * (unit % 4) + 2 * i) ^ 0x8080u;
      const uint32_t above = permute_bytes(codes, k1024s, 0x7150);  // 1024 + 128 + code
      pairs[0][i] = mul_halves(sub_halves(above, 0x64806480), scale);
    }
  }
};
struct HalvesOfQ4_0 {
  static constexpr int kElements = 16, kEights = 2;
  TANDEM_HD static int column_of(int unit, int eight) { return 32 * (unit / 2) + 8 * (unit % 2) + 16 * eight; }
  TANDEM_HD static void unpack(const uint8_t* row, int unit, uint32_t (&pairs)[2][4]) {
    const uint8_t* block = row + 18 * (unit / 2);
    const uint32_t scale = scale_pair(block);
    for (int i = 0; i < 4; ++i) {
      const uint32_t codes = permute_bytes(load_as<uint16_t>(block + 2 + 8 * (unit % 2) + 2 * i), 0, 0x4140);
      for (int high = 0; high < 2; ++high) {
        const uint32_t above = and_or(codes >> 4 * high, 0x000f000f, k1024s);  // 1024 + 8 + code
        pairs[high][i] = mul_halves(sub_halves(above, 0x64086408), scale);
      }
    }
  }
};

}  // namespace tandem::cuda
