// Rows of floats as 16-bit integers, for products of two rows: x is round(32767 / norm * x), with the row's Euclidean norm.
// Then no sum of products overflows 32 bits, whatever the rows are (by Cauchy and Schwarz it is at most about 2^30), and
// the result is exact but for the rounding of the codes: in a product of rows a and b of d numbers one deviation is
// 1.25e-5 |a| |b|, 1.4e-4 of what the product of random rows of 128 numbers is, and what rounding one of them to halves
// makes. (Both in bf16: 2.4e-3.) A row's error does not depend on other rows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem::cpu::avx512_bf16 {

// Encodes 16 rows of ld floats, ld a multiple of 32. codes: [16, ld], aligned to 64 bytes; 32 columns lie in an order of
// their own, the same in all rows. A number is its code * units[row]; the unit of a row with a NaN or an infinity is NaN.
void encode_rows(const float* rows, int64_t ld, std::byte* codes, float* units);

}  // namespace tandem::cpu::avx512_bf16
