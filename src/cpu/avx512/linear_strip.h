// Loading a strip of 16 weight rows so that every lane of a vector is a row: pieces of the rows are loaded
// several to a vector and transposed as 4-byte words. And what unpackers in several folders do with such words.
#pragma once

#include "cpu/avx512/linear_layout.h"
#include "cpu/avx512/linear_simd.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// Units of a block of the file, by what unpacks it (linear_unpack.h).
template <class Unpack>
inline constexpr int64_t block_units = []() -> int64_t {
  if constexpr (requires { Unpack::block_units; }) return Unpack::block_units;
  return 1;
}();

// The 4 bytes at `at`, `at` + 4, + 8, + 12 of every row.
struct Words4 {
  __m512i w[4];
};

// Lane i of the result is 16 bytes of row 4 * i.
TANDEM_INLINE __m512i load_every_fourth(const std::byte* row, size_t stride) {
  const auto piece = [](const std::byte* p) __attribute__((always_inline)) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  };
  const __m512i v = _mm512_castsi128_si512(piece(row));
  const __m512i v2 = _mm512_inserti32x4(v, piece(row + 4 * stride), 1);
  const __m512i v3 = _mm512_inserti32x4(v2, piece(row + 8 * stride), 2);
  return _mm512_inserti32x4(v3, piece(row + 12 * stride), 3);
}

// Lane by lane: word j of a, b, c and d become the four words of result j.
TANDEM_INLINE Words4 transpose_lanes(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i ab_low = _mm512_unpacklo_epi32(a, b), ab_high = _mm512_unpackhi_epi32(a, b);
  const __m512i cd_low = _mm512_unpacklo_epi32(c, d), cd_high = _mm512_unpackhi_epi32(c, d);
  return {{_mm512_unpacklo_epi64(ab_low, cd_low), _mm512_unpackhi_epi64(ab_low, cd_low),
           _mm512_unpacklo_epi64(ab_high, cd_high), _mm512_unpackhi_epi64(ab_high, cd_high)}};
}

TANDEM_INLINE Words4 load_words4(const StripRows& rows, size_t at) {
  const std::byte* p = rows.base + at;
  return transpose_lanes(load_every_fourth(p, rows.stride), load_every_fourth(p + rows.stride, rows.stride),
                         load_every_fourth(p + 2 * rows.stride, rows.stride),
                         load_every_fourth(p + 3 * rows.stride, rows.stride));
}

// The 8 words of 32 bytes of every row: less work a word than two times four.
struct Words8 {
  __m512i w[8];
};

// 32 bytes of a row and of the one four further.
TANDEM_INLINE __m512i load_two(const std::byte* row, size_t stride) {
  const auto piece = [](const std::byte* p) __attribute__((always_inline)) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  };
  return _mm512_inserti64x4(_mm512_castsi256_si512(piece(row)), piece(row + 4 * stride), 1);
}

TANDEM_INLINE Words8 load_words8(const StripRows& rows, size_t at) {
  // half[h].w[j]: words j and 4 + j of rows 8h.. and of rows 8h + 4.., four lanes each
  Words4 half[2];
  unroll<2>([&](auto h) __attribute__((always_inline)) {
    const std::byte* p = rows.base + at + 8 * h.value * rows.stride;
    half[h.value] = transpose_lanes(load_two(p, rows.stride), load_two(p + rows.stride, rows.stride),
                                    load_two(p + 2 * rows.stride, rows.stride),
                                    load_two(p + 3 * rows.stride, rows.stride));
  });
  Words8 words;
  unroll<4>([&](auto j) __attribute__((always_inline)) {
    words.w[j.value] = _mm512_shuffle_i32x4(half[0].w[j.value], half[1].w[j.value], 0x88);
    words.w[4 + j.value] = _mm512_shuffle_i32x4(half[0].w[j.value], half[1].w[j.value], 0xdd);
  });
  return words;
}

// Tokens as rows: n_words (a multiple of 8) of T <= 16 rows to [n_words][T]. Rows past T are read too; their
// contents do not matter.
TANDEM_INLINE void interleave(const StripRows& rows, int64_t n_words, int64_t T, void* to) {
  const __mmask16 tokens = first_lanes(T);
  std::byte* at = static_cast<std::byte*>(to);
  for (int64_t i = 0; i < n_words; i += 8) {
    const Words8 words = load_words8(rows, static_cast<size_t>(4 * i));
    unroll<8>([&](auto j) __attribute__((always_inline)) {
      _mm512_mask_storeu_epi32(at + 4 * j.value * T, tokens, words.w[j.value]);
    });
    at += 32 * T;
  }
}

// The words of 16 rows, `total` bytes wide, at any even byte offset: put together from pieces of 32 bytes
// and, at the end, perhaps 16.
template <int total>
struct Pieces {
  static_assert(total % 16 == 0);
  __m512i w[total / 4];

  // Loads what a unit that ends at byte `end` needs beyond what one that ended at `begin` did.
  template <int begin, int end>
  TANDEM_INLINE void load(const StripRows& rows, size_t at) {
    constexpr int first = (begin + 31) / 32, last = (end + 31) / 32;
    unroll<last - first>([&](auto i) __attribute__((always_inline)) {
      constexpr int piece = first + decltype(i)::value;
      if constexpr (32 * piece + 32 <= total) {
        const Words8 eight = load_words8(rows, at + 32 * piece);
        unroll<8>([&](auto j) __attribute__((always_inline)) { w[8 * piece + j.value] = eight.w[j.value]; });
      } else {
        const Words4 four = load_words4(rows, at + 32 * piece);
        unroll<4>([&](auto j) __attribute__((always_inline)) { w[8 * piece + j.value] = four.w[j.value]; });
      }
    });
  }
  template <int offset>
  TANDEM_INLINE __m512i word() const {
    static_assert(offset % 2 == 0);
    if constexpr (offset % 4 == 0) {
      return w[offset / 4];
    } else {
      return _mm512_rol_epi32(_mm512_mask_blend_epi16(0x55555555, w[offset / 4], w[offset / 4 + 1]), 16);
    }
  }
  template <int offset>
  TANDEM_INLINE __m512 half() const {
    if constexpr (offset % 4 == 0) return low_halves(w[offset / 4]);
    return high_halves(w[offset / 4]);
  }
};

// Shifts the words right by n bits, or left by -n.
template <int n>
TANDEM_INLINE __m512i words_shifted(__m512i v) {
  if constexpr (n > 0) return _mm512_srli_epi32(v, static_cast<unsigned>(n));
  if constexpr (n < 0) return _mm512_slli_epi32(v, static_cast<unsigned>(-n));
  return v;
}

// (2 sc + 1) * d of n bits of every word from bit `first` on.
template <int first, int n>
TANDEM_INLINE __m512 odd_scale(__m512i words, __m512 d) {
  const __m512i odd = _mm512_ternarylogic_epi32(words_shifted<first - 1>(words), _mm512_set1_epi32((2 << n) - 2), _mm512_set1_epi32(1), 0xea);
  return _mm512_mul_ps(_mm512_cvtepi32_ps(odd), d);
}

// IQ1_M's d, whose nibbles are the top ones of its four words of scales, times 1/8.
TANDEM_INLINE __m512 iq1_m_eighth_of_d(__m512i first_two, __m512i last_two) {
  const auto nibble = [](__m512i words, auto shift, int mask) __attribute__((always_inline)) {
    return _mm512_and_si512(words_shifted<decltype(shift)::value>(words), _mm512_set1_epi32(mask));
  };
  const __m512i low = _mm512_or_si512(nibble(first_two, Index<12>{}, 0xf), nibble(first_two, Index<24>{}, 0xf0));
  const __m512i high = _mm512_or_si512(nibble(last_two, Index<4>{}, 0xf00), nibble(last_two, Index<16>{}, 0xf000));
  return _mm512_mul_ps(low_halves(_mm512_or_si512(low, high)), _mm512_set1_ps(0.125f));
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
