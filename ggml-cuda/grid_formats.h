// The formats whose weights are vectors of a grid (gguf/blocks_grid.h), in the planes of layout.h: their indices, signs and
// scales keep the file's bits, and vectors are looked up where they are used.
//
// An entry of the table is a word of shared memory, expanded from the 16 bits of gguf/grids.h when a kernel starts (4 KB at
// most, IQ1 8; a word a thread or a few, from L1 for all but the first block of a multiprocessor; it overlaps the end of the
// kernel before). Random words of 32 lanes meet in some 3.5 of the 32 banks.
//   IQ1  as IQ2: nibbles 0, 1 or 2, and a sign of the whole vector makes them 4, 5 or 6; levels are eighths, from -9 to 9
//   IQ2  eight nibbles 0, 1 or 2; a sign makes it 4, 5 or 6, and a byte permutation puts four of these levels in a word
//   IQ3  four bytes, the levels; a byte permutation spreads the signs to masks of bytes
//
// Signs are a word a block (plane high). The eight columns 8v .. 8v + 7 of a block have bits 4j + v (IQ2: a shift by v puts
// them next to the nibbles of an entry) or 8 (j % 4) + j / 4 * 4 + v (IQ3: a shift puts those of a word of columns at the
// ends of its bytes). Either way the parity of a vector's signs is that of bit v of all nibbles, and the eighth signs are the
// top nibble. Where the file has seven signs, that nibble holds four other bits until complete_signs().
//
// Instructions as compiled for sm_90, of a block of 32 columns of one row in a product with one token: IQ2_XXS 132, IQ2_XS 159,
// IQ2_S 147, IQ3_XXS 136, IQ3_S 143, IQ1_S 122, IQ1_M 133; Q4_K 82, IQ4_XS 128. FLOORS.md says what that makes of decoding.
#pragma once

#include "ggml-cuda/layout.h"
#include "gguf/blocks_grid.h"

namespace tandem::cuda {

// Vectors in the grid of a dtype; 0: it has none.
TANDEM_HD constexpr int grid_entries(DType dtype) {
  switch (dtype) {
    case DType::IQ2_XXS:
    case DType::IQ3_XXS: return 256;
    case DType::IQ2_XS:
    case DType::IQ3_S: return 512;
    case DType::IQ2_S: return 1024;
    case DType::IQ1_S:
    case DType::IQ1_M: return 2048;
    default: return 0;
  }
}

TANDEM_HD constexpr bool has_grid(DType dtype) {
  return grid_entries(dtype) != 0;
}
// Vectors of eight columns; else of four.
TANDEM_HD constexpr bool has_grid_of_8(DType dtype) {
  return dtype == DType::IQ2_XXS || dtype == DType::IQ2_XS || dtype == DType::IQ2_S || dtype == DType::IQ1_S ||
         dtype == DType::IQ1_M;
}
// -1, 0 or 1, with an eighth more or less; no signs.
TANDEM_HD constexpr bool has_eighths(DType dtype) {
  return dtype == DType::IQ1_S || dtype == DType::IQ1_M;
}

template <DType T>
TANDEM_HD inline uint32_t packed_vector(uint32_t i) {
  if constexpr (T == DType::IQ2_XXS) return grids().iq2_xxs[i];
  if constexpr (T == DType::IQ2_XS) return grids().iq2_xs[i];
  if constexpr (T == DType::IQ2_S) return grids().iq2_s[i];
  if constexpr (T == DType::IQ3_XXS) return grids().iq3_xxs[i];
  if constexpr (T == DType::IQ3_S) return grids().iq3_s[i];
  if constexpr (has_eighths(T)) return grids().iq1[i];
  return 0;
}

// The table's entry i.
template <DType T>
TANDEM_HD inline uint32_t expanded_vector(uint32_t i) {
  uint32_t v = packed_vector<T>(i);
  if constexpr (has_grid_of_8(T)) {  // two bits to nibbles
    v = (v | v << 8) & 0x00ff00ffu;
    v = (v | v << 4) & 0x0f0f0f0fu;
    return (v | v << 2) & 0x33333333u;
  } else {  // three bits to bytes
    v = (v & 7) | (v & 0x38) << 5 | (v & 0x1c0) << 10 | (v & 0xe00) << 15;
    if constexpr (T == DType::IQ3_S) return 2 * v + 0x01010101u;
    return 8 * v + 0x04040404u + ((v & v >> 1 & v >> 2 & 0x01010101u) << 1);  // 62 for 7
  }
}

// Where entries come from: a table in shared memory, or, where nobody made one, the packed vectors.
struct SharedGrid {
  const uint32_t* words;
  template <DType T>
  TANDEM_HD uint32_t entry(uint32_t i) const {
#ifndef __CUDA_ARCH__
    if (!words) return expanded_vector<T>(i);
#endif
    return words[i];
  }
};
struct PackedGrid {
  template <DType T>
  TANDEM_HD uint32_t entry(uint32_t i) const {
    return expanded_vector<T>(i);
  }
};

// A thread's share of the table; a barrier has to follow.
template <DType T>
TANDEM_HD inline void make_grid(uint32_t* words, int thread, int n_threads) {
  for (int i = thread; i < grid_entries(T); i += n_threads)
    words[i] = expanded_vector<T>(static_cast<uint32_t>(i));
}

// ---- signs ----

// Bit of sign j of vector v of eight columns of a block.
template <DType T>
TANDEM_HD constexpr int sign_bit(int v, int j) {
  return has_grid_of_8(T) ? 4 * j + v : 8 * (j % 4) + j / 4 * 4 + v;
}

// Whether the file has seven signs of eight.
TANDEM_HD constexpr bool has_seven_signs(DType dtype) {
  return dtype == DType::IQ2_XXS || dtype == DType::IQ2_XS || dtype == DType::IQ3_XXS;
}

template <DType T>
TANDEM_HD inline uint32_t complete_signs(uint32_t high) {
  if constexpr (!has_seven_signs(T)) return high;
  const uint32_t seven = high & 0x0fffffffu;
  uint32_t parity = seven ^ seven >> 16;
  parity ^= parity >> 8;
  parity ^= parity >> 4;
  return seven | parity << 28;
}

// ---- vectors ----

// The four signed levels of columns 4w.. of half h of a block of an IQ2 or IQ1 dtype.
//   low    indices, a byte each       signs  of the block
//   upper  higher bits of index v: bits v (IQ2_XS), 2v and 2v + 1 (IQ2_S), 3v to 3v + 2 (IQ1_S), 4v to 4v + 2 (IQ1_M); of IQ1_M
//          bit 4v + 3, and of IQ1_S bit 15 for all, is set where an eighth is subtracted
template <DType T, class Grid>
TANDEM_HD inline uint32_t levels_of_8(const Grid& grid, uint32_t low, uint32_t signs, uint32_t upper, int h,
                                      int w) {
  const int v = 2 * h + w / 2;
  uint32_t index = low >> 8 * v & 255;
  if constexpr (T == DType::IQ2_XS) index |= (upper >> v & 1) << 8;
  if constexpr (T == DType::IQ2_S) index |= (upper >> 2 * v & 3) << 8;
  if constexpr (has_eighths(T)) {
    constexpr int bits = T == DType::IQ1_S ? 3 : 4;
    index |= (upper >> bits * v & 7) << 8;
    const uint32_t less = upper >> (T == DType::IQ1_S ? 15 : 4 * v + 3) & 1;
    constexpr uint32_t kLevels = 0x000901f9, kLess = 0x0007fff7;
    return permute_bytes(kLevels, kLess, (grid.template entry<T>(index) + less * 0x44444444u) >> 16 * (w % 2) & 0xffff);
  }
  const uint32_t codes = grid.template entry<T>(index) + ((signs >> v & 0x11111111u) << 2);
  constexpr uint32_t kLevels = 0x002b1908, kNegative = 0x00d5e7f8;
  return permute_bytes(kLevels, kNegative, codes >> 16 * (w % 2) & 0xffff);
}

// The same of an IQ3 dtype. low: the indices of the half; upper: bit 4h + w is the index's ninth.
template <DType T, class Grid>
TANDEM_HD inline uint32_t levels_of_4(const Grid& grid, uint32_t low, uint32_t signs, uint32_t upper, int h,
                                      int w) {
  uint32_t index = low >> 8 * w & 255;
  if constexpr (T == DType::IQ3_S) index |= (upper >> (4 * h + w) & 1) << 8;
  const uint32_t level = grid.template entry<T>(index);
  const uint32_t negative = spread_high_bits(signs << (7 - (w % 2 * 4 + 2 * h + w / 2)));
  if constexpr (T == DType::IQ3_S) return (level ^ negative) | 0x01010101u;  // levels are odd: -x is ~x | 1
  return (level ^ negative) + (negative & 0x01010101u);                      // no carry: ~x < 255
}

// ---- from the file ----

// Signs, in the order of the block's plane, from bytes of eight signs: signs(v), of which the lowest n count.
template <DType T, class Fn>
TANDEM_HD inline uint32_t pack_signs(Fn&& signs) {
  uint32_t word = 0;
  for (int v = 0; v < 4; ++v) {
    for (int j = 0; j < (has_seven_signs(T) ? 7 : 8); ++j) word |= (signs(v) >> j & 1u) << sign_bit<T>(v, j);
  }
  return word;
}

// The low and high pieces of block s.
TANDEM_HD inline void pack_grid(const BlockIQ2_XXS& b, int s, uint32_t* low, uint32_t* high) {
  const uint32_t word = b.qs[4 * s + 2] | static_cast<uint32_t>(b.qs[4 * s + 3]) << 16;
  low[0] = b.qs[4 * s] | static_cast<uint32_t>(b.qs[4 * s + 1]) << 16;
  high[0] = pack_signs<DType::IQ2_XXS>([&](int v) { return word >> 7 * v; }) | (word >> 28) << 28;
}
TANDEM_HD inline void pack_grid(const BlockIQ2_XS& b, int s, uint32_t* low, uint32_t* high) {
  low[0] = 0;
  high[0] = pack_signs<DType::IQ2_XS>([&](int v) { return static_cast<uint32_t>(b.qs[4 * s + v]) >> 9; });
  for (int v = 0; v < 4; ++v) {
    const uint32_t code = b.qs[4 * s + v];
    low[0] |= (code & 255) << 8 * v;
    high[0] |= (code >> 8 & 1) << (28 + v);
  }
}
TANDEM_HD inline void pack_grid(const BlockIQ2_S& b, int s, uint32_t* low, uint32_t* high) {
  low[0] = 0;
  for (int v = 0; v < 4; ++v) low[0] |= static_cast<uint32_t>(b.qs[4 * s + v]) << 8 * v;
  high[0] = pack_signs<DType::IQ2_S>([&](int v) { return static_cast<uint32_t>(b.signs[4 * s + v]); });
}
template <class Block>
TANDEM_HD inline void pack_grid_iq1(const Block& b, int s, uint32_t* low) {
  low[0] = 0;
  for (int v = 0; v < 4; ++v) low[0] |= static_cast<uint32_t>(b.qs[4 * s + v]) << 8 * v;
}
TANDEM_HD inline void pack_grid(const BlockIQ1_S& b, int s, uint32_t* low, uint32_t*) {
  pack_grid_iq1(b, s, low);
}
TANDEM_HD inline void pack_grid(const BlockIQ1_M& b, int s, uint32_t* low, uint32_t*) {
  pack_grid_iq1(b, s, low);
}
TANDEM_HD inline void pack_grid(const BlockIQ3_XXS& b, int s, uint32_t* low, uint32_t* high) {
  const uint32_t word = b.words[2 * s] | static_cast<uint32_t>(b.words[2 * s + 1]) << 16;
  low[0] = low[1] = 0;
  for (int i = 0; i < 8; ++i) low[i / 4] |= static_cast<uint32_t>(b.qs[8 * s + i]) << i % 4 * 8;
  high[0] = pack_signs<DType::IQ3_XXS>([&](int v) { return word >> 7 * v; }) | (word >> 28) << 28;
}
TANDEM_HD inline void pack_grid(const BlockIQ3_S& b, int s, uint32_t* low, uint32_t* high) {
  low[0] = low[1] = 0;
  for (int i = 0; i < 8; ++i) low[i / 4] |= static_cast<uint32_t>(b.qs[8 * s + i]) << i % 4 * 8;
  high[0] = pack_signs<DType::IQ3_S>([&](int v) { return static_cast<uint32_t>(b.signs[4 * s + v]); });
}

}  // namespace tandem::cuda
