#include "cpu/bf16/row_codes.h"

#include "cpu/avx512/vec.h"

namespace tandem::cpu::avx512_bf16 {

void encode_rows(const float* rows, int64_t ld, std::byte* codes, float* units) {
  constexpr float kMaxCode = 32767.0f;
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
  store(factors, set1(kMaxCode) / norm);
  store(units, fma(norm, set1(1.0f / kMaxCode), norm - norm));  // infinity - infinity is NaN
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

}  // namespace tandem::cpu::avx512_bf16
