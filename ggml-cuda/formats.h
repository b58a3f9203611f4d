// Reading the planes of layout.h: a block's bits from memory into registers, the bits into bytes fit for
// integer products, and the block's scales. Everything is resolved at compile time by dtype. Any thread,
// nothing thrown.
//
// An element is scale * (code - kCodeOffset) - minimum, with the scale and minimum of its half of the block.
// Codes are unsigned bytes below 128, or signed bytes.
#pragma once

#include "ggml-cuda/grid_formats.h"
#include "ggml-cuda/layout.h"
#include "gguf/blocks.h"

namespace tandem::cuda {

template <DType T>
struct Format {
  static constexpr PieceBytes kBytes = piece_bytes(T);
  static constexpr int kCodeOffset = T == DType::Q4_0   ? 8
                                     : T == DType::Q5_0 ? 16
                                     : T == DType::Q6_K ? 32
                                     : T == DType::Q3_K ? 4
                                     : T == DType::TQ2_0 || T == DType::Q1_0 ? 1
                                                                             : 0;
  // Each half of a block has its own scale.
  static constexpr bool kHalves = T == DType::Q2_K || T == DType::Q3_K || T == DType::Q6_K || T == DType::IQ2_XS ||
                                  T == DType::IQ2_S || T == DType::IQ1_M || T == DType::NVFP4;
  static constexpr bool kMinimum =
      T == DType::Q4_1 || T == DType::Q5_1 || T == DType::Q2_K || T == DType::Q4_K || T == DType::Q5_K;
  // Codes are indices into a table of signed bytes; their nibbles lie in the order that byte permutation
  // wants.
  static constexpr bool kTable =
      T == DType::IQ4_NL || T == DType::IQ4_XS || T == DType::MXFP4 || T == DType::NVFP4;
  static constexpr bool kTwoBits = T == DType::Q2_K || T == DType::Q3_K || T == DType::TQ2_0;
  static constexpr bool kOneBit = T == DType::Q1_0;  // codes 0 and 2
  // Codes are vectors of a grid, with signs.
  static constexpr bool kGrid = has_grid(T);
  // The scale is in the high piece; the scale piece has bits of the codes.
  static constexpr bool kScaleInHigh = T == DType::IQ2_XXS || T == DType::IQ3_XXS;
  static constexpr bool kCodesInScale = T == DType::IQ2_S || T == DType::IQ3_S || has_eighths(T);
};

// The loaded bytes of a block of any dtype; planes that a dtype lacks are never touched.
struct RawBlock {
  uint32_t low[4];
  uint32_t high[4];
  uint32_t scale;
  uint32_t super[4];
};

struct BlockScales {
  float scale[2];    // of the halves; equal unless kHalves
  float minimum[2];  // 0 unless kMinimum
};

// Loads that stay where they are written, ahead of their use and of the wait for the previous kernel:
// volatile, and predicated instead of branched; invalid ones give zeros. Without these, ptxas takes a target for one that may
// keep its value, in every loop around it. Weights are read once: wide loads of them leave no line in L1.
template <int kWords>
TANDEM_HD TANDEM_FLAT inline void load_words(const std::byte* from, uint32_t* to, bool valid = true) {
  for (int i = 0; i < kWords; ++i) to[i] = 0;
#ifdef __CUDA_ARCH__
  if constexpr (kWords == 4) {
    asm volatile(
        "{ .reg .pred p; setp.ne.s32 p, %5, 0; @p ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4]; }"
        : "+r"(to[0]), "+r"(to[1]), "+r"(to[2]), "+r"(to[3])
        : "l"(from), "r"(static_cast<int>(valid)));
  } else if constexpr (kWords == 2) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %3, 0; @p ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2]; }"
                 : "+r"(to[0]), "+r"(to[1])
                 : "l"(from), "r"(static_cast<int>(valid)));
  } else {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p ld.global.L1::no_allocate.u32 %0, [%1]; }"
                 : "+r"(to[0])
                 : "l"(from), "r"(static_cast<int>(valid)));
  }
#else
  for (int i = 0; i < kWords && valid; ++i) to[i] = reinterpret_cast<const uint32_t*>(from)[i];
#endif
}

// The same for 16 or 8 bytes that are read again and again.
template <int kWords>
TANDEM_HD TANDEM_FLAT inline void load_again(const void* from, uint32_t* to, bool valid = true) {
  static_assert(kWords == 4 || kWords == 2);
  for (int i = 0; i < kWords; ++i) to[i] = 0;
#ifdef __CUDA_ARCH__
  if constexpr (kWords == 4) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %5, 0; @p ld.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(to[0]), "+r"(to[1]), "+r"(to[2]), "+r"(to[3])
                 : "l"(from), "r"(static_cast<int>(valid)));
  } else {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %3, 0; @p ld.global.v2.u32 {%0, %1}, [%2]; }"
                 : "+r"(to[0]), "+r"(to[1])
                 : "l"(from), "r"(static_cast<int>(valid)));
  }
#else
  for (int i = 0; i < kWords && valid; ++i) to[i] = static_cast<const uint32_t*>(from)[i];
#endif
}

template <class T>
TANDEM_HD TANDEM_FLAT inline uint32_t load_small(const T* from, bool valid = true) {
  uint32_t value = 0;
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 1) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p ld.global.u8 %0, [%1]; }"
                 : "+r"(value)
                 : "l"(from), "r"(static_cast<int>(valid)));
  } else if constexpr (sizeof(T) == 2) {
    asm volatile(
        "{ .reg .pred p; .reg .u16 h; mov.u16 h, 0; setp.ne.s32 p, %2, 0; @p ld.global.u16 h, [%1]; "
        "cvt.u32.u16 %0, h; }"
        : "+r"(value)
        : "l"(from), "r"(static_cast<int>(valid)));
  } else {
    load_words<1>(reinterpret_cast<const std::byte*>(from), &value, valid);
  }
#else
  if (valid) value = *from;
#endif
  return value;
}

template <int kBytes>
TANDEM_HD TANDEM_FLAT inline void load_piece(const std::byte* plane, uint32_t piece, uint32_t* to,
                                             bool valid = true) {
  if constexpr (kBytes == 1) {
    to[0] = load_small(reinterpret_cast<const uint8_t*>(plane) + piece, valid);
  } else if constexpr (kBytes == 2) {
    to[0] = load_small(reinterpret_cast<const uint16_t*>(plane) + piece, valid);
  } else if constexpr (kBytes != 0) {
    load_words<kBytes / 4>(plane + static_cast<uint64_t>(piece) * kBytes, to, valid);
  }
}

// The bits that block_scales() wants, of a block.
template <DType T>
TANDEM_HD inline void load_scale(const Planes& planes, uint32_t block, uint32_t* to) {
  if constexpr (Format<T>::kScaleInHigh) return load_piece<Format<T>::kBytes.high>(planes.high, block, to);
  load_piece<Format<T>::kBytes.scale>(planes.scale, block, to);
}
template <DType T>
TANDEM_HD TANDEM_FLAT inline uint32_t scale_of(const RawBlock& raw) {
  return Format<T>::kScaleInHigh ? raw.high[0] : raw.scale;
}

template <DType T>
TANDEM_HD TANDEM_FLAT inline RawBlock load_block(const Planes& planes, uint32_t block, bool valid = true) {
  using F = Format<T>;
  RawBlock raw{};
  load_piece<F::kBytes.low>(planes.low, block, raw.low, valid);
  load_piece<F::kBytes.high>(planes.high, block, raw.high, valid);
  load_piece<F::kBytes.scale>(planes.scale, block, &raw.scale, valid);
  load_piece<F::kBytes.super>(planes.super, block / kSuperBlocks, raw.super, valid);
  return raw;
}

// The planes from a block on that starts a super-block, or of a dtype without.
template <DType T>
TANDEM_HD inline Planes advance(const Planes& planes, uint32_t block) {
  constexpr PieceBytes kBytes = Format<T>::kBytes;
  const uint64_t at = block;
  return {planes.low + at * kBytes.low, planes.high + at * kBytes.high, planes.scale + at * kBytes.scale,
          planes.super + at / kSuperBlocks * kBytes.super};
}

constexpr uint32_t table_word(const int8_t* table, int w) {
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word |= static_cast<uint32_t>(static_cast<uint8_t>(table[4 * w + i])) << 8 * i;
  return word;
}

template <DType T, int kWord>
inline constexpr uint32_t kTableWord = table_word(T == DType::MXFP4 || T == DType::NVFP4 ? kvalues_mxfp4 : kvalues_iq4nl, kWord);

// Four bytes of the table of 16. Nibble i of the arguments, for the byte i of the result: the low three bits
// of the index; and i, or 4 + i where the index has bit 3 set.
template <DType T>
TANDEM_HD inline uint32_t look_up(uint32_t low_bits, uint32_t upper) {
  return permute_bytes(permute_bytes(kTableWord<T, 0>, kTableWord<T, 1>, low_bits),
                       permute_bytes(kTableWord<T, 2>, kTableWord<T, 3>, low_bits), upper);
}

struct CodeWords {
  uint32_t first, second;  // columns 4w..4w+3 and 16+4w..16+4w+3, a byte each
};

// x >> by, or x << -by; by is a constant once inlined.
TANDEM_HD inline uint32_t shift_right(uint32_t x, int by) {
  return by >= 0 ? x >> by : x << -by;
}

// Unpacks word w of both halves.
//   low_a, low_b    4-bit codes: word w of the low piece, unused; 2-bit: the two words of the low piece; 1-bit: its word,
//                   unused; Q8_0: word w of the low piece, word w of the high piece
//   high_a, high_b  one high bit: the high piece, unused; two high bits: the two words of the high piece
//   scale           where it has bits of the codes: the scale piece
// Formats of a grid: low_a, low_b are the words of the low piece, high_a the high piece.
template <DType T, class Grid = PackedGrid>
TANDEM_HD TANDEM_FLAT inline CodeWords unpack_word(uint32_t low_a, uint32_t low_b, uint32_t high_a,
                                                   uint32_t high_b, int w, uint32_t scale = 0,
                                                   const Grid& grid = {}) {
  using F = Format<T>;
  CodeWords q{};
  if constexpr (F::kGrid) {
    const uint32_t signs = complete_signs<T>(high_a);
    if constexpr (has_grid_of_8(T)) {
      const uint32_t upper = has_eighths(T) ? scale : T == DType::IQ2_S ? scale >> 8 : high_a >> 28;
      return {levels_of_8<T>(grid, low_a, signs, upper, 0, w),
              levels_of_8<T>(grid, low_a, signs, upper, 1, w)};
    } else {
      return {levels_of_4<T>(grid, low_a, signs, scale, 0, w),
              levels_of_4<T>(grid, low_b, signs, scale, 1, w)};
    }
  } else if constexpr (T == DType::Q8_0) {
    return {low_a, low_b};
  } else if constexpr (F::kTable) {
    const uint32_t low_bits = low_a & 0x77777777u;
    const uint32_t upper = (low_a >> 1 & 0x44444444u) | 0x32103210u;
    return {look_up<T>(low_bits & 0xffff, upper & 0xffff), look_up<T>(low_bits >> 16, upper >> 16)};
  } else if constexpr (F::kTwoBits) {
    q = {low_a >> 2 * w & 0x03030303u, low_b >> 2 * w & 0x03030303u};
  } else if constexpr (F::kOneBit) {  // bit 8i + w of column 4w + i, bit 8i + 4 + w of column 16 + 4w + i
    q = {shift_right(low_a, w - 1) & 0x02020202u, low_a >> (w + 3) & 0x02020202u};
  } else {
    q = {low_a & 0x0f0f0f0fu, low_a >> 4 & 0x0f0f0f0fu};
  }
  if constexpr (F::kBytes.high == 4) {  // bit 8i + w of column 4w + i, bit 8i + 4 + w of column 16 + 4w + i
    constexpr int at = F::kTwoBits ? 2 : 4;
    q.first |= shift_right(high_a, w - at) & (0x01010101u << at);
    q.second |= shift_right(high_a, w + 4 - at) & (0x01010101u << at);
  } else if constexpr (F::kBytes.high ==
                       8) {  // bits 8i + 2w of column 4w + i; the second half in its own word
    q.first |= shift_right(high_a, 2 * w - 4) & 0x30303030u;
    q.second |= shift_right(high_b, 2 * w - 4) & 0x30303030u;
  }
  return q;
}

template <DType T, class Grid = PackedGrid>
TANDEM_HD TANDEM_FLAT inline CodeWords unpack_word(const RawBlock& raw, int w, const Grid& grid = {}) {
  using F = Format<T>;
  if constexpr (F::kGrid || F::kOneBit)
    return unpack_word<T>(raw.low[0], raw.low[1], raw.high[0], 0, w, raw.scale, grid);
  if constexpr (T == DType::Q8_0) return unpack_word<T>(raw.low[w], raw.high[w], 0, 0, w);
  if constexpr (F::kTwoBits) return unpack_word<T>(raw.low[0], raw.low[1], raw.high[0], 0, w);
  return unpack_word<T>(raw.low[w], 0, raw.high[0], raw.high[1], w);
}

// The same, directly from memory, for a thread that needs one word of a block.
template <DType T>
TANDEM_HD inline CodeWords load_codes(const Planes& planes, uint32_t block, int w) {
  using F = Format<T>;
  const auto word = [block](const std::byte* plane, int words_per_piece, int i) {
    return load_small(reinterpret_cast<const uint32_t*>(plane) +
                      static_cast<uint64_t>(block) * words_per_piece + i);
  };
  if constexpr (T == DType::Q8_0) {
    return unpack_word<T>(word(planes.low, 4, w), word(planes.high, 4, w), 0, 0, w);
  } else {
    uint32_t low_a, low_b = 0, high_a = 0, high_b = 0, scale = 0;
    if constexpr (F::kGrid) {
      low_a = word(planes.low, F::kBytes.low / 4, 0);
      if constexpr (F::kBytes.low == 8) low_b = word(planes.low, 2, 1);
      if constexpr (F::kCodesInScale) load_piece<F::kBytes.scale>(planes.scale, block, &scale);
    } else if constexpr (F::kTwoBits) {
      low_a = word(planes.low, 2, 0), low_b = word(planes.low, 2, 1);
    } else if constexpr (F::kOneBit) {
      low_a = word(planes.low, 1, 0);
    } else {
      low_a = word(planes.low, 4, w);
    }
    if constexpr (F::kBytes.high != 0) high_a = word(planes.high, F::kBytes.high / 4, 0);
    if constexpr (F::kBytes.high == 8) high_b = word(planes.high, 2, 1);
    return unpack_word<T>(low_a, low_b, high_a, high_b, w, scale);
  }
}

// Six-bit scale and minimum of block s of a super-block of Q4_K and Q5_K. words[0] has their low four bits of
// the scales, words[1] those of the minimums, words[2] the high two of both: scale | minimum << 2; four bits
// a block.
TANDEM_HD TANDEM_FLAT inline void k4_scale(const uint32_t* words, int s, int* scale, int* minimum) {
  const uint32_t high = words[2] >> 4 * s;
  *scale = static_cast<int>((words[0] >> 4 * s & 15) | (high & 3) << 4);
  *minimum = static_cast<int>((words[1] >> 4 * s & 15) | (high & 12) << 2);
}

TANDEM_HD inline float low_half(uint32_t word) {
  return half_to_float(static_cast<fp16_t>(word & 0xffff));
}
TANDEM_HD inline float high_half(uint32_t word) {
  return half_to_float(static_cast<fp16_t>(word >> 16));
}

// 2^(e - 127) / 2: as e8m0_to_fp32_half.
TANDEM_HD inline float exponent_scale(uint32_t e) {
  return std::bit_cast<float>(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

// As e4m3_to_fp32_half, of a byte: the bits as those of a float, subnormal where the byte's are, times a power of two.
TANDEM_HD inline float e4m3_scale(uint32_t byte) {
  const uint32_t code = byte & 127;
  return code == 127 ? std::bit_cast<float>(0x7fc00000u) : mul_rn(std::bit_cast<float>(code << 20), 0x1p119f);
}

// s: the block's index in its super-block. The order of multiplications is that of the reference.
template <DType T>
TANDEM_HD TANDEM_FLAT inline BlockScales block_scales(uint32_t scale, const uint32_t* super, int s) {
  using F = Format<T>;
  const auto both = [](float d, float m) { return BlockScales{{d, d}, {m, m}}; };
  if constexpr (T == DType::Q4_1 || T == DType::Q5_1) {
    return both(low_half(scale), -high_half(scale));
  } else if constexpr (T == DType::Q4_K || T == DType::Q5_K) {
    int sc, m;
    k4_scale(super + 1, s, &sc, &m);
    return both(mul_rn(low_half(super[0]), static_cast<float>(sc)),
                mul_rn(high_half(super[0]), static_cast<float>(m)));
  } else if constexpr (T == DType::IQ4_XS) {
    const int sc = static_cast<int>((super[1] >> 4 * s & 15) | (super[0] >> (16 + 2 * s) & 3) << 4);
    return both(mul_rn(low_half(super[0]), static_cast<float>(sc - 32)), 0.0f);
  } else if constexpr (T == DType::Q2_K) {
    const float d = low_half(super[0]), m = high_half(super[0]);
    return {
        {mul_rn(d, static_cast<float>(scale & 15)), mul_rn(d, static_cast<float>(scale >> 8 & 15))},
        {mul_rn(m, static_cast<float>(scale >> 4 & 15)), mul_rn(m, static_cast<float>(scale >> 12 & 15))}};
  } else if constexpr (T == DType::Q3_K || T == DType::Q6_K) {
    const float d = low_half(super[0]);
    return {{mul_rn(d, static_cast<float>(static_cast<int8_t>(scale))),
             mul_rn(d, static_cast<float>(static_cast<int8_t>(scale >> 8)))},
            {0.0f, 0.0f}};
  } else if constexpr (T == DType::MXFP4) {
    return both(exponent_scale(scale), 0.0f);
  } else if constexpr (T == DType::NVFP4) {
    return {{e4m3_scale(scale), e4m3_scale(scale >> 8)}, {0.0f, 0.0f}};
  } else if constexpr (T == DType::TQ2_0) {
    return both(low_half(super[0]), 0.0f);
  } else if constexpr (T == DType::IQ1_S) {  // codes count eighths
    return both(mul_rn(low_half(super[0]), 0.125f * static_cast<float>(2 * (scale >> 12 & 7) + 1)), 0.0f);
  } else if constexpr (T == DType::IQ1_M) {
    const auto bits = static_cast<uint32_t>((static_cast<uint64_t>(super[1]) << 32 | super[0]) >> (16 + 6 * s));
    const auto of_half = [&](uint32_t sc) {
      return mul_rn(low_half(super[0]), 0.125f * static_cast<float>(2 * (sc & 7) + 1));
    };
    return {{of_half(bits), of_half(bits >> 3)}, {0.0f, 0.0f}};
  } else if constexpr (T == DType::IQ3_S) {
    return both(mul_rn(low_half(super[0]), static_cast<float>(2 * (super[1] >> 4 * s & 15) + 1)), 0.0f);
  } else if constexpr (F::kGrid) {  // d * (1/2 + four bits) / 4 or / 2
    const auto odd = [&](uint32_t bits) {
      return mul_rn(mul_rn(low_half(super[0]), 0.5f + static_cast<float>(bits)),
                    T == DType::IQ3_XXS ? 0.5f : 0.25f);
    };
    if constexpr (F::kScaleInHigh) return both(odd(scale >> 28), 0.0f);
    return {{odd(scale & 15), odd(scale >> 4 & 15)}, {0.0f, 0.0f}};
  } else {
    return both(low_half(scale), 0.0f);
  }
}

template <DType T>
TANDEM_HD inline BlockScales load_scales(const Planes& planes, uint32_t block) {
  using F = Format<T>;
  uint32_t scale = 0, super[4] = {};
  load_scale<T>(planes, block, &scale);
  load_piece<F::kBytes.super>(planes.super, block / kSuperBlocks, super);
  return block_scales<T>(scale, super, static_cast<int>(block % kSuperBlocks));
}

// Returns the element that byte i of a word of codes stands for; `half` of the block.
template <DType T>
TANDEM_HD inline float element(uint32_t word, int i, const BlockScales& scales, int half) {
  const int code = static_cast<int8_t>(word >> 8 * i & 0xff) - Format<T>::kCodeOffset;
  const float product = mul_rn(scales.scale[half], static_cast<float>(code));
  if constexpr (Format<T>::kMinimum) return add_rn(product, -scales.minimum[half]);
  return product;
}

// The 32 elements of a block.
template <DType T>
TANDEM_HD inline void dequantize_block(const Planes& planes, uint32_t block, float* to) {
  const RawBlock raw = load_block<T>(planes, block);
  const BlockScales scales =
      block_scales<T>(scale_of<T>(raw), raw.super, static_cast<int>(block % kSuperBlocks));
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int w = 0; w < 4; ++w) {
    const CodeWords q = unpack_word<T>(raw, w);
    for (int i = 0; i < 4; ++i) {
      to[4 * w + i] = element<T>(q.first, i, scales, 0);
      to[16 + 4 * w + i] = element<T>(q.second, i, scales, 1);
    }
  }
}

// Calls fn.template operator()<T>() for a quantized dtype; the one place that lists them.
template <class Fn>
TANDEM_HD TANDEM_FLAT inline void for_format(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::Q4_0: return fn.template operator()<DType::Q4_0>();
    case DType::Q4_1: return fn.template operator()<DType::Q4_1>();
    case DType::Q5_0: return fn.template operator()<DType::Q5_0>();
    case DType::Q5_1: return fn.template operator()<DType::Q5_1>();
    case DType::Q8_0: return fn.template operator()<DType::Q8_0>();
    case DType::Q2_K: return fn.template operator()<DType::Q2_K>();
    case DType::Q3_K: return fn.template operator()<DType::Q3_K>();
    case DType::Q4_K: return fn.template operator()<DType::Q4_K>();
    case DType::Q5_K: return fn.template operator()<DType::Q5_K>();
    case DType::Q6_K: return fn.template operator()<DType::Q6_K>();
    case DType::IQ4_NL: return fn.template operator()<DType::IQ4_NL>();
    case DType::IQ4_XS: return fn.template operator()<DType::IQ4_XS>();
    case DType::MXFP4: return fn.template operator()<DType::MXFP4>();
    case DType::IQ2_XXS: return fn.template operator()<DType::IQ2_XXS>();
    case DType::IQ2_XS: return fn.template operator()<DType::IQ2_XS>();
    case DType::IQ2_S: return fn.template operator()<DType::IQ2_S>();
    case DType::IQ3_XXS: return fn.template operator()<DType::IQ3_XXS>();
    case DType::IQ3_S: return fn.template operator()<DType::IQ3_S>();
    case DType::IQ1_S: return fn.template operator()<DType::IQ1_S>();
    case DType::IQ1_M: return fn.template operator()<DType::IQ1_M>();
    case DType::TQ2_0: return fn.template operator()<DType::TQ2_0>();
    case DType::NVFP4: return fn.template operator()<DType::NVFP4>();
    case DType::Q1_0: return fn.template operator()<DType::Q1_0>();
    default: return;
  }
}

}  // namespace tandem::cuda
