// Rows of floats as 16-bit integers, for products of two rows: x is round(32767 / norm * x), with the row's Euclidean norm.
// Then no sum of products overflows 32 bits, whatever the rows are (by Cauchy and Schwarz it is at most about 2^30), and
// the result is exact but for the rounding of the codes: in a product of rows a and b of d numbers one deviation is
// 1.25e-5 |a| |b|, 1.4e-4 of what the product of random rows of 128 numbers is, and what rounding one of them to halves
// makes. (bf16: 2.4e-3.) A row's error does not depend on other rows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

inline constexpr float kMaxRowCode = 32767.0f;

// Encodes 16 rows of ld floats, ld a multiple of 32. codes: [16, ld]; 32 columns lie in an order of their own, the same
// in all rows. A number is its code * units[row]; the unit of a row with a NaN or an infinity is NaN.
TANDEM_INLINE void encode_rows(const float* rows, int64_t ld, std::byte* codes, float* units) {
  Vec squares[16];
  for (int64_t r = 0; r < 16; ++r) {
    const float* row = rows + r * ld;
    Vec a = set1(0.0f), b = a;
    for (int64_t c = 0; c < ld; c += 32) {
      const Vec x = load(row + c), y = load(row + c + 16);
      a = fma(x, x, a);
      b = fma(y, y, b);
    }
    squares[r] = a + b;
  }
  const Vec norm = _mm512_sqrt_ps(sum_each(squares));
  alignas(64) float factors[16];
  store(factors, set1(kMaxRowCode) / norm);
  store(units, fma(norm, set1(1.0f / kMaxRowCode), norm - norm));
  for (int64_t r = 0; r < 16; ++r) {
    const float* row = rows + r * ld;
    const Vec factor = set1(factors[r]);
    for (int64_t c = 0; c < ld; c += 32) {
      _mm512_store_si512(codes + (r * ld + c) * 2,
                         _mm512_packs_epi32(_mm512_cvtps_epi32(load(row + c) * factor),
                                            _mm512_cvtps_epi32(load(row + c + 16) * factor)));
    }
  }
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
