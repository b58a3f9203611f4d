// How matrix products are laid out for AMX: steps of many tokens. Fewer tokens take those of linear_bytes.h or avx512/.
//
// The unit multiplies a tile of activations, [16 tokens][32 columns], with a tile of weights, [16 pairs of columns]
// [16 rows][2], both bf16, and adds to a tile of sums, [16 tokens][16 rows], in floats. A tile is 1 KB. Four sums, two
// tiles of activations and two of weights fill the eight tile registers: 32 tokens x 32 rows, four loads for four
// products.
//
// Weights. A strip of 16 rows is unpacked 256 columns at a time by the code of avx512/ (linear_unpack.h); only the sink
// differs (linear_pairs.h): every pair of columns is one vector of 16 rows x 2 bf16, and 16 such vectors are a tile.
// F16 is split into two planes, high + low, whose sum is exact; low planes that are 0, as in models that were trained in bf16,
// are not multiplied. All other formats round to bf16, 8 bits of mantissa.
//
// Activations. Blocks of 256 columns (the last may be narrower), in them tokens by 16, in them tiles:
//   [k / 256][tokens / 16][columns / 32][16 tokens][32 columns] bf16, zero where tokens or columns are missing.
// So what a block of weights needs is contiguous: 256 KB for 512 tokens, which stay in L2 for all strips of a group.
//
// Order: for each group of rows, for each 256 columns, for each two strips: unpack them into 16 KB of L1, then add their
// products with all tokens to the sums, which lie in L2. Floors of a product of n tokens, with m rows and k columns:
//   2 n m k operations, 1024 a cycle: 3.1 Top/s at 3 GHz, 2.7 with random numbers, which make the unit slower;
//   bytes: a product of two by two tiles is 64 cycles, and loads 2 KB from L1 and 2 KB from L2; the sums of 256 columns
//   are 8 KB more in 512 cycles. 48 bytes a cycle from L2, which gives 32 to 64, make it the narrower floor.
// Measured on a core of a Sapphire Rapids, 512 tokens, m 5632, k 2048: products alone 1.6-1.7 Top/s, 60% of the peak; with
// unpacking (12% of the time) and storing results (14%) 1.1-1.2. Larger blocks of columns (512, all) are slower, and so are
// other orders of the two loops, prefetched activations and prefetched results. On a Granite Rapids (2.75 Top/s with random numbers,
// 3.4 without) products alone 1.65, all together 1.1-1.2; results are stored beside the next products there, which had taken 12%.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/linear_kernels.h"

namespace tandem::cpu {
namespace TANDEM_ISA {

inline constexpr int64_t kTileRows = 16;       // tokens of a tile of activations, rows of one of weights
inline constexpr int64_t kTileColumns = 32;    // columns of both
inline constexpr int64_t kTileVectors = 16;    // 64-byte vectors of a tile
inline constexpr int64_t kBlockColumns = 256;  // unpacked and multiplied at a time
inline constexpr int64_t kPlaneVectors = kBlockColumns / 2;  // of a strip

// Rows of a strip from some column on. Rows past the strip's last are not read.
struct WeightRows {
  const std::byte* base;
  size_t stride;
};

// A dtype, as the driver needs it.
struct Format {
  int64_t unit;       // columns of a block of the file; 1: floats, whose columns may end anywhere
  size_t unit_bytes;  // of a row
  int planes;         // 2: high and low halves
  // Unpacks n columns of 16 rows, n a multiple of 32 and of the unit, to planes of kPlaneVectors vectors. Returns how many planes
  // have numbers other than 0, at least 1.
  int (*unpack)(const WeightRows& rows, int64_t n, std::byte* panel);
};

const Format* find_format(DType dtype);       // null: no kernels
const Format* find_grid_format(DType dtype);  // the same of those of vbmi/ only

// See LinearKernels::multiply.
void multiply_tiles(const LinearCall& call, int64_t row0, int64_t row1, std::byte* scratch);
size_t tiles_scratch_bytes(DType dtype, int64_t n);

constexpr int64_t whole(int64_t n, int64_t step) {
  return (n + step - 1) / step * step;
}

// Where the activations of the block that starts at `column` lie, of n tokens and k columns.
struct ActivationBlock {
  size_t offset;      // bytes
  int64_t n_columns;  // a multiple of 32
  size_t tile_row_bytes() const { return static_cast<size_t>(n_columns * kTileRows) * 2; }  // of 16 tokens
};
constexpr ActivationBlock activation_block(int64_t n, int64_t k, int64_t column) {
  const int64_t left = whole(k, kTileColumns) - column;
  return {static_cast<size_t>(whole(n, kTileRows) * column) * 2, left < kBlockColumns ? left : kBlockColumns};
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
