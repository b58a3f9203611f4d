// Eight consecutive elements of a cached row as floats, for each dtype a cache may have. A row is read in
// pieces that it is aligned to: 16 bytes for plain dtypes (head dims are multiples of eight), 2 bytes for
// blocks of 34 and 18 bytes. Values are those of gguf/quants.h, bit for bit.
#pragma once

#include <cstring>

#include "ggml-cuda/portable.h"
#include "gguf/dtype.h"

namespace tandem::cuda {

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

TANDEM_HD inline void read_eight(DType dtype, const uint8_t* row, int chunk, float (&x)[8]) {
  switch (dtype) {
    case DType::F16: return ReadF16::eight(row, chunk, x);
    case DType::BF16: return ReadBF16::eight(row, chunk, x);
    case DType::Q8_0: return ReadQ8_0::eight(row, chunk, x);
    case DType::Q4_0: return ReadQ4_0::eight(row, chunk, x);
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
    default: return load_as<float>(row + 4 * i);
  }
}

}  // namespace tandem::cuda
