// From the file's blocks to the planes of layout.h, one file block at a time: by a kernel at upload, by a
// loop in tests.
#pragma once

#include <type_traits>

#include "ggml-cuda/formats.h"

namespace tandem::cuda {

template <DType T, class List>
struct FindBlock;
template <DType T, class Block, class... Rest>
struct FindBlock<T, BlockList<Block, Rest...>>
    : std::conditional_t<Block::kDType == T, std::type_identity<Block>, FindBlock<T, BlockList<Rest...>>> {};

// The block struct of a dtype in the file.
template <DType T>
using FileBlock = typename FindBlock<T, BlockFormats>::type;
// Blocks of 32 columns in one of the file.
template <DType T>
inline constexpr int kPerFileBlock = FileBlock<T>::kElements / kBlockColumns;

// Code of element e of a block, as the bits say; offsets are subtracted later.
template <class Block>
TANDEM_HD inline uint32_t nibble_of(const Block& b, int e) {
  return e < 16 ? b.qs[e] & 15 : b.qs[e - 16] >> 4;
}
template <class Block>
TANDEM_HD inline uint32_t fifth_bit_of(const Block& b, int e) {
  return (b.qh[e / 8] >> e % 8 & 1) << 4;
}
// As blocks.h describes the planes of the K types.
template <class Block>
TANDEM_HD inline uint32_t two_bits_of(const Block& b, int e) {
  return b.qs[e / 128 * 32 + e % 32] >> e % 128 / 32 * 2 & 3;
}
template <class Block>
TANDEM_HD inline uint32_t k_nibble_of(const Block& b, int e) {
  return b.qs[e / 64 * 32 + e % 32] >> e / 32 % 2 * 4 & 15;
}

TANDEM_HD inline uint32_t code_of(const BlockQ4_0& b, int e) {
  return nibble_of(b, e);
}
TANDEM_HD inline uint32_t code_of(const BlockQ4_1& b, int e) {
  return nibble_of(b, e);
}
TANDEM_HD inline uint32_t code_of(const BlockQ5_0& b, int e) {
  return nibble_of(b, e) | fifth_bit_of(b, e);
}
TANDEM_HD inline uint32_t code_of(const BlockQ5_1& b, int e) {
  return nibble_of(b, e) | fifth_bit_of(b, e);
}
TANDEM_HD inline uint32_t code_of(const BlockQ8_0& b, int e) {
  return static_cast<uint8_t>(b.qs[e]);
}
TANDEM_HD inline uint32_t code_of(const BlockQ2_K& b, int e) {
  return two_bits_of(b, e);
}
TANDEM_HD inline uint32_t code_of(const BlockQ3_K& b, int e) {
  return two_bits_of(b, e) | (b.hmask[e % 32] >> e / 32 & 1) << 2;
}
TANDEM_HD inline uint32_t code_of(const BlockQ4_K& b, int e) {
  return k_nibble_of(b, e);
}
TANDEM_HD inline uint32_t code_of(const BlockQ5_K& b, int e) {
  return k_nibble_of(b, e) | (b.qh[e % 32] >> e / 32 & 1) << 4;
}
TANDEM_HD inline uint32_t code_of(const BlockQ6_K& b, int e) {
  const uint32_t low = b.ql[e / 128 * 64 + e % 64] >> e / 64 % 2 * 4 & 15;
  return low | (b.qh[e / 128 * 32 + e % 32] >> e % 128 / 32 * 2 & 3) << 4;
}
TANDEM_HD inline uint32_t code_of(const BlockIQ4_NL& b, int e) {
  return nibble_of(b, e);
}
TANDEM_HD inline uint32_t code_of(const BlockIQ4_XS& b, int e) {
  return b.qs[e / 32 * 16 + e % 16] >> e % 32 / 16 * 4 & 15;
}
TANDEM_HD inline uint32_t code_of(const BlockMXFP4& b, int e) {
  return nibble_of(b, e);
}
TANDEM_HD inline uint32_t code_of(const BlockTQ2_0& b, int e) {
  return two_bits_of(b, e);
}
TANDEM_HD inline uint32_t code_of(const BlockNVFP4& b, int e) {
  return b.qs[e / 16 * 8 + e % 8] >> e % 16 / 8 * 4 & 15;
}
TANDEM_HD inline uint32_t code_of(const BlockQ1_0& b, int e) {
  return (b.qs[e / 8] >> e % 8 & 1) << 1;
}

// Scale piece of block s (0 where a file block is a block).
TANDEM_HD inline uint32_t pack_scale(const BlockQ4_0& b, int) {
  return b.d;
}
TANDEM_HD inline uint32_t pack_scale(const BlockQ4_1& b, int) {
  return b.d | static_cast<uint32_t>(b.m) << 16;
}
TANDEM_HD inline uint32_t pack_scale(const BlockQ5_0& b, int) {
  return b.d;
}
TANDEM_HD inline uint32_t pack_scale(const BlockQ5_1& b, int) {
  return b.d | static_cast<uint32_t>(b.m) << 16;
}
TANDEM_HD inline uint32_t pack_scale(const BlockQ8_0& b, int) {
  return b.d;
}
TANDEM_HD inline uint32_t pack_scale(const BlockQ2_K& b, int s) {
  return b.scales[2 * s] | b.scales[2 * s + 1] << 8;
}
TANDEM_HD inline uint32_t scale_q3_k(const BlockQ3_K& b, int s) {  // of the half-block s, as a signed byte
  const int low = b.scales[s % 8] >> s / 8 * 4 & 15, high = b.scales[8 + s % 4] >> s / 4 * 2 & 3;
  return static_cast<uint8_t>((low | high << 4) - 32);
}
TANDEM_HD inline uint32_t pack_scale(const BlockQ3_K& b, int s) {
  return scale_q3_k(b, 2 * s) | scale_q3_k(b, 2 * s + 1) << 8;
}
TANDEM_HD inline uint32_t pack_scale(const BlockQ6_K& b, int s) {
  return static_cast<uint8_t>(b.scales[2 * s]) |
         static_cast<uint32_t>(static_cast<uint8_t>(b.scales[2 * s + 1])) << 8;
}
TANDEM_HD inline uint32_t pack_scale(const BlockIQ4_NL& b, int) {
  return b.d;
}
TANDEM_HD inline uint32_t pack_scale(const BlockMXFP4& b, int) {
  return b.e;
}
TANDEM_HD inline uint32_t pack_scale(const BlockIQ2_XS& b, int s) {
  return b.scales[s];
}
TANDEM_HD inline uint32_t pack_scale(const BlockIQ2_S& b, int s) {
  return b.scales[s] | static_cast<uint32_t>(b.qh[s]) << 8;
}
TANDEM_HD inline uint32_t pack_scale(const BlockIQ3_S& b, int s) {
  return b.qh[s];
}
TANDEM_HD inline uint32_t pack_scale(const BlockIQ1_S& b, int s) {
  return b.qh[s];
}
TANDEM_HD inline uint32_t pack_scale(const BlockIQ1_M& b, int s) {
  return b.qh[2 * s] | static_cast<uint32_t>(b.qh[2 * s + 1]) << 8;
}
TANDEM_HD inline uint32_t pack_scale(const BlockNVFP4& b, int s) {
  return b.d[2 * s] | static_cast<uint32_t>(b.d[2 * s + 1]) << 8;
}
TANDEM_HD inline uint32_t pack_scale(const BlockQ1_0& b, int) {
  return b.d;
}
template <class Block>
TANDEM_HD inline uint32_t pack_scale(const Block&, int) {
  return 0;
}  // all in the super piece

// Super piece of a file block of 256.
TANDEM_HD inline void pack_super(const BlockQ2_K& b, uint32_t* to) {
  to[0] = b.d | static_cast<uint32_t>(b.dmin) << 16;
}
TANDEM_HD inline void pack_super(const BlockQ3_K& b, uint32_t* to) {
  to[0] = b.d;
}
TANDEM_HD inline void pack_super(const BlockQ6_K& b, uint32_t* to) {
  to[0] = b.d;
}
template <class Block>
TANDEM_HD inline void pack_super_k4(const Block& b, uint32_t* to) {
  to[0] = b.d | static_cast<uint32_t>(b.dmin) << 16;
  to[1] = to[2] = to[3] = 0;
  for (int s = 0; s < kSuperBlocks; ++s) {  // the packing that unpack_scale_min_k4 describes
    const uint32_t sc =
        s < 4 ? b.scales[s] & 63u : (b.scales[s + 4] & 15u) | (b.scales[s - 4] >> 6 & 3u) << 4;
    const uint32_t m =
        s < 4 ? b.scales[s + 4] & 63u : (b.scales[s + 4] >> 4 & 15u) | (b.scales[s] >> 6 & 3u) << 4;
    to[1] |= (sc & 15) << 4 * s;
    to[2] |= (m & 15) << 4 * s;
    to[3] |= (sc >> 4 | m >> 4 << 2) << 4 * s;
  }
}
TANDEM_HD inline void pack_super(const BlockQ4_K& b, uint32_t* to) {
  pack_super_k4(b, to);
}
TANDEM_HD inline void pack_super(const BlockQ5_K& b, uint32_t* to) {
  pack_super_k4(b, to);
}
TANDEM_HD inline void pack_super(const BlockIQ4_XS& b, uint32_t* to) {
  to[0] = b.d | static_cast<uint32_t>(b.scales_h) << 16;
  to[1] = 0;
  for (int i = 0; i < 4; ++i) to[1] |= static_cast<uint32_t>(b.scales_l[i]) << 8 * i;
}
TANDEM_HD inline void pack_super(const BlockIQ3_S& b, uint32_t* to) {
  to[0] = b.d;
  to[1] = 0;
  for (int i = 0; i < 4; ++i) to[1] |= static_cast<uint32_t>(b.scales[i]) << 8 * i;
}
TANDEM_HD inline void pack_super(const BlockIQ1_M& b, uint32_t* to) {
  uint64_t all = iq1_m_d(b);
  for (int s = 0; s < kSuperBlocks; ++s) all |= static_cast<uint64_t>(b.scales[s / 2] >> s % 2 * 6 & 63) << (16 + 6 * s);
  for (int i = 0; i < 2; ++i) to[i] = static_cast<uint32_t>(all >> 32 * i);
}
TANDEM_HD inline void pack_super(const BlockTQ2_0& b, uint32_t* to) {
  to[0] = b.d;
}
template <class Block>
TANDEM_HD inline void pack_super(const Block& b, uint32_t* to) {
  if constexpr (has_grid(Block::kDType)) to[0] = b.d;
}

// The words of the low and high pieces of a block from its codes [32]; the inverse of unpack_word.
template <DType T>
TANDEM_HD inline void pack_codes(const uint8_t* codes, uint32_t* low, uint32_t* high) {
  using F = Format<T>;
  for (int i = 0; i < 4; ++i) low[i] = high[i] = 0;
  for (int e = 0; e < kBlockColumns; ++e) {
    const int half = e / 16, w = e % 16 / 4, i = e % 4;
    const uint32_t code = codes[e];
    if constexpr (T == DType::Q8_0) {
      (half == 0 ? low : high)[w] |= code << 8 * i;
    } else if constexpr (F::kTable) {
      low[w] |= code << (16 * half + 4 * i);
    } else if constexpr (F::kOneBit) {
      low[0] |= code >> 1 << (8 * i + 4 * half + w);
    } else if constexpr (F::kTwoBits) {
      low[half] |= (code & 3) << (8 * i + 2 * w);
      if constexpr (F::kBytes.high == 4) high[0] |= code >> 2 << (8 * i + 4 * half + w);
    } else {
      low[w] |= (code & 15) << (8 * i + 4 * half);
      if constexpr (F::kBytes.high == 4) high[0] |= code >> 4 << (8 * i + 4 * half + w);
      if constexpr (F::kBytes.high == 8) high[half] |= code >> 4 << (8 * i + 2 * w);
    }
  }
}

template <int kBytes>
TANDEM_HD inline void store_piece(std::byte* plane, int64_t piece, const uint32_t* from) {
  if constexpr (kBytes == 1) {
    reinterpret_cast<uint8_t*>(plane)[piece] = static_cast<uint8_t>(from[0]);
  } else if constexpr (kBytes == 2) {
    reinterpret_cast<uint16_t*>(plane)[piece] = static_cast<uint16_t>(from[0]);
  } else {
    for (int i = 0; i < kBytes / 4; ++i)
      reinterpret_cast<uint32_t*>(plane)[piece * (kBytes / 4) + i] = from[i];
  }
}

// Block s of file block `index` of a matrix; `from` is that file block, at any address that its struct may
// have.
template <DType T>
TANDEM_HD inline void relayout_block(const FileBlock<T>& from, int64_t index, int s, const Planes& to) {
  constexpr PieceBytes kBytes = Format<T>::kBytes;
  uint32_t low[4], high[4];
  if constexpr (Format<T>::kGrid) {
    pack_grid(from, s, low, high);
  } else {
    uint8_t codes[kBlockColumns];
    for (int e = 0; e < kBlockColumns; ++e)
      codes[e] = static_cast<uint8_t>(code_of(from, kBlockColumns * s + e));
    pack_codes<T>(codes, low, high);
  }
  const int64_t block = index * kPerFileBlock<T> + s;
  store_piece<kBytes.low>(to.low, block, low);
  store_piece<kBytes.high>(to.high, block, high);
  const uint32_t scale = pack_scale(from, s);
  store_piece<kBytes.scale>(to.scale, block, &scale);
  if constexpr (kBytes.super != 0) {
    uint32_t super[4];
    if (s == 0) {
      pack_super(from, super);
      store_piece<kBytes.super>(to.super, index, super);
    }
  }
}

}  // namespace tandem::cuda
