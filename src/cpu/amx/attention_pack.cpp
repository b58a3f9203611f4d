#include "cpu/amx/attention_pack.h"

#include <cmath>

#include "cpu/amx/tiles.h"
#include "cpu/avx512/linear_strip.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// Greatest magnitude of a row; NaN if there is one, because its bits are greater than infinity's.
TANDEM_INLINE float magnitude_or_nan(const float* row, int64_t n) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i a = _mm512_setzero_si512(), b = a;
  for (int64_t c = 0; c < n; c += 32) {
    a = _mm512_max_epu32(a, _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(row + c)), magnitude));
    b = _mm512_max_epu32(b, _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(row + c + 16)), magnitude));
  }
  const uint32_t most = _mm512_reduce_max_epu32(_mm512_max_epu32(a, b));
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(most))));
}

}  // namespace

int32_t greatest_code(int64_t n_columns) {
  // 127 * 256, so that the high byte fits however the low one is rounded.
  const float fits = 720000.0f / std::sqrt(static_cast<float>(n_columns));
  return fits < 32512.0f ? static_cast<int32_t>(fits) : 32512;
}

void encode_rows(const float* rows, int64_t ld, int64_t n_columns, std::byte* tiles, float* units) {
  const auto greatest = static_cast<float>(greatest_code(n_columns));
  const __m512i half = _mm512_set1_epi16(128), low_bytes = _mm512_set1_epi16(0x00ff);
  constexpr int kSelect =
      0xca;  // of three operands: the second where the first has bits, the third elsewhere
  for (int64_t r = 0; r < 16; ++r, rows += ld) {
    const float most = magnitude_or_nan(rows, n_columns);
    units[r] = (most + (most - most)) / greatest;  // infinity - infinity is NaN
    const __m512 inverse = _mm512_set1_ps(most < 1e-30f ? 0.0f : greatest / most);
    std::byte* to = tiles + 64 * r;
    for (int64_t c = 0; c < n_columns; c += 64, to += 2048) {
      const auto word = [&](int64_t i) __attribute__((always_inline)) {
        return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(rows + c + 16 * i), inverse));
      };
      const __m512i first = _mm512_packs_epi32(word(0), word(1)),
                    second = _mm512_packs_epi32(word(2), word(3));
      const __m512i low = _mm512_ternarylogic_epi32(low_bytes, first, _mm512_slli_epi16(second, 8), kSelect);
      const __m512i high =
          _mm512_ternarylogic_epi32(low_bytes, _mm512_srli_epi16(_mm512_add_epi16(first, half), 8),
                                    _mm512_add_epi16(second, half), kSelect);
      _mm512_store_si512(to, high);
      _mm512_store_si512(to + 1024, low);
    }
  }
}

void pack_transposed(const float* rows, int64_t ld, int64_t n_columns, std::byte* tiles, int64_t stride) {
  alignas(64) std::byte pairs[1024];  // [16 pairs of rows][16 columns][2]
  for (int64_t c = 0; c < n_columns; c += 16, tiles += stride) {
    for (int64_t r = 0; r < 16; ++r) {
      const float *even = rows + 2 * r * ld + c, *odd = even + ld;
      _mm512_store_si512(pairs + 64 * r, pack_pairs(_mm512_loadu_ps(even), _mm512_loadu_ps(odd)));
    }
    transpose_words(pairs, tiles);
  }
}

void transpose_words(const std::byte* from, std::byte* to) {
  unroll<2>([&](auto half) __attribute__((always_inline)) {
    const Words8 words = load_words8({from, 64}, 32 * half.value);
    unroll<8>([&](auto i) __attribute__((always_inline)) {
      _mm512_store_si512(to + 512 * half.value + 64 * i.value, words.w[i.value]);
    });
  });
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
