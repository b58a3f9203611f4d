// How matrix products are laid out for AVX512.
//
// Weights. Sixteen rows make a strip. A strip is unpacked into a panel in scratch: for every 4 columns one
// 64-byte vector, 16 rows x 4 bytes, unsigned; so that one vpdpbusd multiplies it with 4 columns of one
// token, broadcast, and leaves every row's sum in a lane of its own: no horizontal sums, no shuffles but
// those of the unpacking. The float scales of 16 rows are one vector as well, and lie in the panel behind the
// columns they belong to.
//
// Activations. T tokens (T <= kMaxTile) make a tile, columns outermost: q[k / 4][T][4 bytes], and likewise
// [block][T] scales and sums, so that a kernel walks panel and tile with one pointer each.
//
// Prefill unpacks a few strips for all columns (they stay in L2) and runs all tiles over them. Up to kMaxTile
// tokens are one tile: then a strip is unpacked some hundred columns at a time into L1, where the tile meets
// it at once. Decode of one token or a few goes along the rows instead, see linear_rows.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/avx512/linear_simd.h"
#include "cpu/linear_kernels.h"

namespace tandem::cpu {
namespace TANDEM_ISA {

inline constexpr int64_t kStrip = 16;  // rows
// Tokens in a tile. 12 integer and 12 float accumulators leave 8 registers; without VNNI a product needs more of those.
#ifdef __AVX512VNNI__
inline constexpr int64_t kMaxTile = 12;
#else
inline constexpr int64_t kMaxTile = 8;
#endif

// 16 rows of a weight, or of a copy of its last ones.
struct StripRows {
  const std::byte* base;
  size_t stride;

  // The 4 bytes at `at` of every row.
  TANDEM_INLINE __m512i words(size_t at) const {
    const __m512i row = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_i32gather_epi32(_mm512_mullo_epi32(row, _mm512_set1_epi32(static_cast<int>(stride))),
                                  base + at, 1);
  }
};

// A quantized dtype, as the product kernels need it.
struct Shape {
  int unit;    // columns of one activation scale: 32 or 256
  int sub;     // columns of one weight scale: 16, 32 or 256
  int offset;  // subtracted from the unsigned panel bytes
  int mins;    // mins in a unit: 0, 1 (a float per 32 columns), 8 or 16 (integers times dmin)
  bool wide;   // panel bytes reach beyond 127: pairs of products overflow 16 bits

  constexpr int subs() const { return unit / sub; }
  // Vectors of a unit in the panel: bytes, scales, mins, dmin.
  constexpr int unit_vectors() const { return unit / 4 + subs() + (mins > 1 ? mins / 2 + 1 : mins); }
};

// Tokens in a tile when there are n (the last tile may have less).
inline int64_t tile_tokens(int64_t n) {
  const int64_t n_tiles = (n + kMaxTile - 1) / kMaxTile;
  return (n + n_tiles - 1) / n_tiles;
}

// The order of columns in q: as they are; 16 columns transposed as 4 x 4 (column 4i + j at 4j + i), so that a word has a column
// of each of four vectors of a grid (vbmi/); or that of one of the kinds of RowColumns.
enum class Order { columns, fours, blocks, sub_blocks, sixteens, planes, pairs };

// Up to so many tokens are multiplied row by row (linear_rows.h), where a dtype can.
inline constexpr int64_t kMaxRowTokens = 8;

// 512 columns of one token for products row by row, those behind a row's end as zeros. A vector of q has four columns of each of
// 16 blocks, a lane each, so that a sum of products has a lane for every block. What else is here lies in the same lanes.
//   blocks      vector g: columns 4g.. of 16 blocks of 32 columns
//   sub_blocks  two super-blocks of Q4_K or Q5_K, a and b: lane p of 16 bytes of vector 2i has columns 8i.. of sub-block 2p of a and of
//               b, then columns 8i + 4.. of both; vector 2i + 1 those of sub-block 2p + 1. `sum` is in the order of sub-blocks
//   sixteens    see RowSixteens
//   planes      see RowPlanes
//   pairs       see RowPairs
struct RowColumns {
  alignas(64) int8_t q[512];
  float scale[16];  // what the lane's columns are multiplied with
  float sum[16];    // scale times the sum of a block's q
};
// The same of two super-blocks of Q6_K, a and b, whose sub-blocks have 16 columns: lane p of 16 bytes of vector 2j has columns 4j.. of
// sub-block p of the first half of a and of its second one, then of those of b; vector 2j + 1 those of sub-block 4 + p of each half.
struct RowSixteens {
  alignas(64) int8_t q[512];
  float scale[16];
  int32_t start[32];  // -32 times the sum of a sub-block's q, of even vectors and of odd ones
};
// The same of two super-blocks of Q2_K, Q3_K or TQ2_0, a and b, of whose two halves (of 128 columns) four planes of bits are 32 columns each.
// Lane p of 16 bytes of vector 2j has columns 16 (p % 2).. of plane j, of a for p < 2: eight of the first half, then eight of the second
// one; vector 2j + 1 the next eight of each.
struct RowPlanes {
  alignas(64) int8_t q[512];
  float scale[16];   // of a, then of b
  int16_t minus[32]; // minus the sum of 16 columns' q, in the order of sub-blocks
};
// The same of eight blocks of NVFP4, whose sub-blocks of 16 columns have a pair of lanes each: lanes 2s and 2s + 1 of vector 2i have the first
// eight columns of sub-block s of blocks 2i and 2i + 1, those of vector 2i + 1 the next eight.
struct RowPairs {
  alignas(64) int8_t q[512];
  float scale[4][16];    // of vectors 2i and 2i + 1
  int32_t start[4][16];  // -12 times the sum of the lane's q in both
};
inline constexpr int64_t kRowColumns = 512;

// How n tokens are encoded for a dtype.
struct Encoding {
  int unit;
  Order order;
  int64_t tile_tokens;
  bool operator==(const Encoding&) const = default;

  bool by_rows() const { return order >= Order::blocks; }
  // Of one token.
  int64_t bytes(int64_t k) const;
};
Encoding encoding_of(DType dtype, int64_t n);

// The parts of a tile of T tokens, every one a [count][T] array of 4-byte words:
//   unit 32:  q[k / 4], scale[k / 32] f32, sum16[k / 32] pairs of i16 sums of 16
//   unit 256: the same with scale[k / 256], and sum32[k / 64] pairs of sums of 32
struct TileLayout {
  int unit;
  int64_t k;
  Order order = Order::columns;
  int64_t q_words() const { return k / 4; }
  int64_t scale_words() const { return k / unit; }
  int64_t sum_words() const { return k / 32; }
  int64_t sum32_words() const { return unit == 256 ? k / 64 : 0; }
  int64_t token_words() const { return q_words() + scale_words() + sum_words() + sum32_words(); }
};

inline int64_t Encoding::bytes(int64_t k) const {
  const int64_t steps = (k + kRowColumns - 1) / kRowColumns;
  if (order == Order::sixteens) return steps * static_cast<int64_t>(sizeof(RowSixteens));
  if (order == Order::planes) return steps * static_cast<int64_t>(sizeof(RowPlanes));
  if (order == Order::pairs) return steps * static_cast<int64_t>(sizeof(RowPairs));
  if (by_rows()) return steps * static_cast<int64_t>(sizeof(RowColumns));
  return 4 * TileLayout{unit, k, order}.token_words();
}

// Columns of activations as 8 bits: [token0, token1) is one whole tile.
void encode_tile(const TileLayout& layout, const float* x, int64_t ldx, int64_t tokens, std::byte* tile);
// Token t of n for products row by row: RowColumns [k / 512][n], RowSixteens, RowPlanes or RowPairs.
void encode_row(const Encoding& encoding, const float* x, int64_t k, int64_t t, int64_t n, std::byte* encoded);

// Columns that share an activation scale of a quantized dtype: 32 or 256; 0: no kernels.
int unit_of(DType dtype);
// The product of a quantized weight; see LinearKernels::multiply.
void multiply_quantized(const LinearCall& call, int64_t row0, int64_t row1, std::byte* scratch);
size_t quantized_scratch_bytes(DType dtype, int64_t n, int64_t k);

// F32, F16 and BF16 weights share one encoding, of floats; see linear_float.cpp.
size_t float_encoded_bytes(int64_t n, int64_t k);
void float_encode(const float* x, int64_t ldx, int64_t n, int64_t k, int64_t token0, int64_t token1,
                  std::byte* encoded);
void multiply_float(const LinearCall& call, int64_t row0, int64_t row1, std::byte* scratch);
size_t float_scratch_bytes(int64_t n, int64_t k);

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
