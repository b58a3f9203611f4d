// Rows of floats as tiles, in the forms that attention multiplies them in. What rows or columns are missing is zero.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem::cpu {
namespace TANDEM_ISA {

// 16 rows of n_columns floats (a multiple of 64), ld apart, as codes of 16 bits in two planes of signed bytes, whose value is
// (256 * high + low) * units[row]: [columns / 64][high, low] tiles of [16 rows][64 columns]. 64 columns lie in an order of
// their own, the same in all rows. A row's greatest code is greatest_code(); the unit of a row with a NaN or an infinity
// is NaN.
void encode_rows(const float* rows, int64_t ld, int64_t n_columns, std::byte* tiles, float* units);

// Sums of n_columns products of high bytes, times 256, and of a high and a low one fit in 32 bits.
int32_t greatest_code(int64_t n_columns);

// 32 rows of n_columns floats (a multiple of 16) transposed and rounded to bf16: a tile of [16 columns][32 rows] for each 16
// columns, `stride` bytes apart.
void pack_transposed(const float* rows, int64_t ld, int64_t n_columns, std::byte* tiles, int64_t stride);

// 16 x 16 words of 4 bytes; not in place.
void transpose_words(const std::byte* from, std::byte* to);

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
