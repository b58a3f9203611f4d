// Rows of floats as tiles of bf16, in the three forms that products take them. Columns come in multiples of 32 and rows
// in multiples of 16 or 32: what is missing is zero.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem::cpu {
namespace TANDEM_ISA {

// Rows [n_rows, ld] of floats and two planes of tiles: `low` gets what rounding to bf16 leaves of `high`. null: no low
// plane.
struct PackCall {
  const float* rows;
  int64_t ld, n_columns;
  std::byte* high;
  std::byte* low;
};

// The left factor, from 16 rows: [columns / 32] tiles of [16 rows][32 columns].
void pack_left(const PackCall& call);
// The right factor, transposed, from 16 rows: [columns / 32] tiles of [16 pairs of columns][16 rows][2].
void pack_right_transposed(const PackCall& call);
// The right factor, from 32 rows: [columns / 32], `stride` bytes apart, of two tiles of [16 pairs of rows][16 columns][2].
// One plane.
void pack_right(const PackCall& call, int64_t stride);
// 16 x 16 words of 4 bytes.
void transpose_words(const std::byte* from, std::byte* to);

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
