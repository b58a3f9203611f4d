// How products in 8-bit integers, the same as those of avx512/, are laid out for AMX: of some tokens, more than are best
// row by row and fewer than are best in bf16 (linear_layout.h), and of Q2_K and Q3_K any larger number.
//
// Why not in strips as there (linear_strip.h). Their bytes are transposed, so that a vector has a column of 16 rows: that takes as long as
// to multiply 20 tokens. A tile of weights is a left factor here, [16 rows][columns of one scale], and those are bytes as
// they lie in the file, once they are bytes: 4 operations for 64 of them. A tile of activations is the right factor, [columns / 4]
// [16 tokens][4], and the sums are [16 rows][16 tokens]. A scale multiplies a row of them, a vector.
//
// Q2_K and Q3_K have so few bits that a code times its scale is a byte. Then the unit adds up all 256 columns, 64 at a time.
//
// Codes are signed and may be some times as large, as they lie high in their byte: the scale is so much smaller. A min, or what an
// offset of the codes makes, multiplies the sum of a token's codes.
//
// Floors, of 16 rows, 256 columns and 16 tokens with scales for 32 columns: 8 tiles of 16 cycles; 16 * 8 * 2 vector operations for
// the sums (3 with mins), 256 for the codes and 200 for the scales; of Q4_K 2.3 KB of weights. At two of 64 bytes a cycle, 3.4
// GHz: 120 ns of a core, in which memory brings 2 KB.
// Measured on a core of a Granite Rapids, in L2 and beside others: unpacking 60 ns, tiles 70 (a store of one takes as long as its product),
// sums 95, and all 225 to 250: they hardly overlap, also where their instructions alternate. Two cores, 5632 x 2048 from memory, GB/s: Q4_0
// 12.9, Q4_K 12.9, Q5_K 13.8, Q8_0 16.3, Q6_K 12.3, where strips of VNNI read 8.6, 8.9, 10.2, 12.7 and 9.9.
// Scales multiplied into the codes, in two planes of bytes, save most sums and stores, but that takes twice as long to unpack.
//
// Up to eight tokens of formats whose scales are not in their codes are there twice in a tile, with columns of one scale and of the next:
// a product and a store make the sums of two scales, and a vector of sums has both. The next chunk is unpacked while one is
// multiplied. In L2 a core takes 245 ns for 16 rows and 256 columns so, of which 70 are the tiles' loads (those of the activations
// come from L2), 25 their stores, 75 the sums. From memory 370, because lines on their way from there take the places of those that
// are read from the L2: half of them are fetched while sums are added (6% more than all while weights are unpacked). Two cores, eight
// tokens, GB/s without this and with it: Q4_0 11.2, 13.9; Q4_K 10.0, 12.9; Q5_K 12.5, 13.4; Q6_K 12.9, 14.2; Q8_0 14.3, 17.5.
// Two strips at a time, so that activations are read once for both, were a quarter slower: more than an L1 holds.
#pragma once

#include "cpu/amx/linear_layout.h"

namespace tandem::cpu {
namespace TANDEM_ISA {

inline constexpr int64_t kGroupTokens = 16;  // of a tile
inline constexpr int64_t kTileWords = kTileRows * kGroupTokens;
inline constexpr int64_t kFewTokens = 8;
inline constexpr int64_t kChunkColumns = 256;
inline constexpr int64_t kMaxScales = kChunkColumns / 16;

// 16 rows of 256 columns.
struct alignas(64) BytePanel {
  std::byte codes[kChunkColumns / 64][kTileRows][64];
  float scales[kTileRows * kMaxScales];  // [16 rows][256 / sub]
  float mins[kTileRows * kMaxScales];    // [16 rows][256 / sub], or with min_codes one factor a row
  std::byte min_codes[kTileRows][64];     // 16 mins, 16 times as much, and zeros
};

// What of activations mins multiply: sums of 16 codes, as floats, or of a chunk as a tile of bytes.
enum class ByteSums { none, floats, tiles };

// encode_few() in linear_bytes_encode.cpp has its own order of the same parts.
//
// A group's activations, each part an array of [count][16 tokens]: 4 columns' codes, scales, and the sums of 16 codes s. A tile of sums is,
// as 4 scales' bytes at a time, those of s & 15 and then of s >> 4, and zeros. Columns are padded with zeros to whole chunks.
struct ByteLayout {
  int unit;  // columns of a scale
  ByteSums sums;
  int64_t k;
  int64_t columns() const { return whole(k, kChunkColumns); }
  size_t scales_at() const { return static_cast<size_t>(columns() / 4) * 64; }
  size_t sums_at() const { return scales_at() + static_cast<size_t>(columns() / unit) * 64; }
  static constexpr size_t kSumsBytes = 1024;  // of a chunk: [16 sums][16 tokens] floats, or a tile
  size_t group_bytes() const {
    return sums_at() + (sums == ByteSums::none ? 0 : static_cast<size_t>(columns() / kChunkColumns) * kSumsBytes);
  }
};

// Up to 16 tokens, [n_tokens, layout.k] floats with ldx from one to the next.
void encode_byte_group(const ByteLayout& layout, const float* x, int64_t ldx, int64_t n_tokens, std::byte* to);
// Up to kFewTokens in their own order, for weights whose scales have `sub` columns.
void encode_few_bytes(const ByteLayout& layout, int sub, const float* x, int64_t ldx, int64_t n_tokens, std::byte* to);

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
