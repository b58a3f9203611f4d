// Weights of 16 rows as bytes, for linear_bytes.h: a struct for a dtype, with
//   unit       columns of an activation's scale
//   sub        columns of a weight's scale
//   is_folded  whether scales are in the codes; then a row has one scale in 256 columns
//   has_mins   whether there are such, if it is not folded
//   sums       of activations, that mins multiply
//   row_bytes  of 256 columns
//   unpack_four(rows, stride, first, panel)  the rows first to first + 3
#pragma once

#include <cstring>

#include "cpu/amx/linear_bytes.h"
#include "cpu/avx512/linear_simd.h"
#include "gguf/blocks.h"

namespace tandem::cpu {
namespace TANDEM_ISA {

namespace {

TANDEM_INLINE __m512i all_bytes(int b) {
  return _mm512_set1_epi8(static_cast<char>(b));
}
// Bits of 64-bit words to the left, by a in the first 32 bytes and b in the others. What comes from other bytes must be masked.
template <int a, int b>
TANDEM_INLINE __m512i rotate_halves(__m512i v) {
  return _mm512_rolv_epi64(v, _mm512_set_epi64(b, b, b, b, a, a, a, a));
}
// The upper bits of bytes without a sign, as many as the mask has, as signed: 128 less.
template <int mask>
TANDEM_INLINE __m512i signed_codes(__m512i v) {
  return _mm512_ternarylogic_epi32(v, all_bytes(mask), all_bytes(0x80), 0x6a);  // (v & mask) ^ 0x80
}
// The bits of a that the mask has, and b's others.
template <int mask>
TANDEM_INLINE __m512i select_bits(__m512i a, __m512i b) {
  return _mm512_ternarylogic_epi32(all_bytes(mask), a, b, 0xca);
}
TANDEM_INLINE __m512i twice(const std::byte* p) {
  return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
TANDEM_INLINE __m512i words_at(const std::byte* p) {
  return _mm512_loadu_si512(p);
}
TANDEM_INLINE void put_codes(BytePanel& panel, int64_t row, int pair, __m512i codes) {
  _mm512_store_si512(panel.codes[pair][row], codes);
}
// one_row(r, w) for four rows.
template <class OneRow>
TANDEM_INLINE void each_of_four(const std::byte* rows, size_t stride, int64_t first, const OneRow& one_row) {
  unroll<4>([&](auto i) __attribute__((always_inline)) {
    one_row(first + i.value, rows + static_cast<size_t>(first + i.value) * stride);
  });
}

// ---- Blocks of 32 columns ----

struct ByteQ4_0 {
  static constexpr int unit = 32, sub = 32;
  static constexpr bool is_folded = false, has_mins = false;
  static constexpr ByteSums sums = ByteSums::none;
  static constexpr size_t row_bytes = 8 * sizeof(BlockQ4_0);
  TANDEM_INLINE static void unpack_four(const std::byte* rows, size_t stride, int64_t first, BytePanel& panel) {
    // The first 16-bit words of eight blocks of 9.
    const __m512i scales = _mm512_castsi128_si512(_mm_setr_epi16(0, 9, 18, 27, 36, 45, 54, 63));
    each_of_four(rows, stride, first, [&](int64_t r, const std::byte* w) __attribute__((always_inline)) {
      unroll<4>([&](auto pair) __attribute__((always_inline)) {
        const std::byte* blocks = w + 2 * pair.value * sizeof(BlockQ4_0) + offsetof(BlockQ4_0, qs);
        const auto at = [](const std::byte* p) __attribute__((always_inline)) {
          return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        };
        const __m512i both = _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(at(blocks)), 0xff00,
                                                         at(blocks + sizeof(BlockQ4_0)));
        // Low nibbles are the first 16 columns of a block.
        const __m512i high = _mm512_rolv_epi64(both, _mm512_set_epi64(0, 0, 4, 4, 0, 0, 4, 4));
        put_codes(panel, r, pair.value, signed_codes<0xf0>(high));
      });
      const __m512i halves = _mm512_permutex2var_epi16(words_at(w), scales, words_at(w + 64));
      const __m256 d = _mm256_cvtph_ps(_mm512_castsi512_si128(halves));
      _mm256_store_ps(panel.scales + 8 * r, _mm256_mul_ps(d, _mm256_set1_ps(1.0f / 16)));
    });
  }
};

struct ByteQ8_0 {
  static constexpr int unit = 32, sub = 32;
  static constexpr bool is_folded = false, has_mins = false;
  static constexpr ByteSums sums = ByteSums::none;
  static constexpr size_t row_bytes = 8 * sizeof(BlockQ8_0);
  TANDEM_INLINE static void unpack_four(const std::byte* rows, size_t stride, int64_t first, BytePanel& panel) {
    // The first 16-bit words of eight blocks of 17.
    const __m512i low = _mm512_castsi128_si512(_mm_setr_epi16(0, 17, 34, 51, 0, 0, 0, 0));
    const __m512i high = _mm512_castsi128_si512(_mm_setr_epi16(0, 0, 0, 0, 4, 21, 38, 55));
    each_of_four(rows, stride, first, [&](int64_t r, const std::byte* w) __attribute__((always_inline)) {
      unroll<4>([&](auto pair) __attribute__((always_inline)) {
        const std::byte* blocks = w + 2 * pair.value * sizeof(BlockQ8_0) + offsetof(BlockQ8_0, qs);
        const auto at = [](const std::byte* p) __attribute__((always_inline)) {
          return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        };
        put_codes(panel, r, pair.value,
                  _mm512_inserti64x4(_mm512_castsi256_si512(at(blocks)), at(blocks + sizeof(BlockQ8_0)), 1));
      });
      const __m512i four = _mm512_permutex2var_epi16(words_at(w), low, words_at(w + 64));
      const __m512i others = _mm512_permutex2var_epi16(words_at(w + 128), high, words_at(w + 192));
      const __m128i halves =
          _mm_blend_epi16(_mm512_castsi512_si128(four), _mm512_castsi512_si128(others), 0xf0);
      _mm256_store_ps(panel.scales + 8 * r, _mm256_cvtph_ps(halves));
    });
  }
};

// ---- Super-blocks of 256 ----

// Q4_K and Q5_K. Of a code that is `times` as large the offset is 128, which is subtracted from the mins.
TANDEM_INLINE void put_scales_and_mins(const std::byte* rows, size_t stride, int64_t first, float times, BytePanel& panel) {
  const __m512 unit = _mm512_mask_blend_ps(0xff00, _mm512_set1_ps(1.0f / times), _mm512_set1_ps(1.0f));
  const __m512i d_and_dmin = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  rows += static_cast<size_t>(first) * stride;
  // Of four rows: d and dmin, then three words: six bits each of four scales, of four mins, and four bits each of the others.
  const auto row = [&](size_t at) __attribute__((always_inline)) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + at * stride));
  };
  __m512i head = _mm512_castsi128_si512(row(0));
  head = _mm512_inserti32x4(head, row(1), 1);
  head = _mm512_inserti32x4(head, row(2), 2);
  head = _mm512_inserti32x4(head, row(3), 3);
  const __m512i six_bits = _mm512_and_si512(head, all_bytes(0x3f));
  const __m512i upper = _mm512_and_si512(_mm512_srli_epi32(head, 2), all_bytes(0x30));
  const __m512i shifts = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0, 4, 0));
  const __m512i fours = _mm512_srlv_epi32(_mm512_shuffle_epi32(head, _MM_PERM_DDDD), shifts);
  const __m512i others = _mm512_ternarylogic_epi32(fours, all_bytes(0x0f), upper, 0xea);  // (a & b) | c
  const __m512d low = _mm512_castsi512_pd(_mm512_unpacklo_epi32(six_bits, others));
  const __m512d high = _mm512_castsi512_pd(_mm512_unpackhi_epi32(six_bits, others));
  // Eight scales and eight mins of each row.
  const __m512i sixteens = _mm512_castpd_si512(_mm512_shuffle_pd(low, high, 0x55));
  unroll<4>([&](auto i) __attribute__((always_inline)) {
    int32_t halves;
    std::memcpy(&halves, rows + static_cast<size_t>(i.value) * stride, sizeof halves);
    const __m512 d =
        _mm512_permutexvar_ps(d_and_dmin, _mm512_castps128_ps512(_mm_cvtph_ps(_mm_cvtsi32_si128(halves))));
    const __m512 integers =
        _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(sixteens, i.value)));
    const __m512 products = _mm512_mul_ps(integers, _mm512_mul_ps(d, unit));
    const __m256 scales = _mm512_castps512_ps256(products);
    _mm256_store_ps(panel.scales + 8 * (first + i.value), scales);
    _mm256_store_ps(panel.mins + 8 * (first + i.value),
                    _mm256_fmsub_ps(scales, _mm256_set1_ps(128.0f), _mm512_extractf32x8_ps(products, 1)));
  });
}

struct ByteQ4_K {
  static constexpr int unit = 256, sub = 32;
  static constexpr bool is_folded = false, has_mins = true;
  static constexpr ByteSums sums = ByteSums::floats;
  static constexpr size_t row_bytes = sizeof(BlockQ4_K);
  TANDEM_INLINE static void unpack_four(const std::byte* rows, size_t stride, int64_t first, BytePanel& panel) {
    put_scales_and_mins(rows, stride, first, 16, panel);
    each_of_four(rows, stride, first, [&](int64_t r, const std::byte* w) __attribute__((always_inline)) {
      const std::byte* qs = w + offsetof(BlockQ4_K, qs);
      unroll<4>([&](auto pair) __attribute__((always_inline)) {
        put_codes(panel, r, pair.value, signed_codes<0xf0>(rotate_halves<4, 0>(twice(qs + 32 * pair.value))));
      });
    });
  }
};

struct ByteQ5_K {
  static constexpr int unit = 256, sub = 32;
  static constexpr bool is_folded = false, has_mins = true;
  static constexpr ByteSums sums = ByteSums::floats;
  static constexpr size_t row_bytes = sizeof(BlockQ5_K);
  TANDEM_INLINE static void unpack_four(const std::byte* rows, size_t stride, int64_t first, BytePanel& panel) {
    put_scales_and_mins(rows, stride, first, 8, panel);
    each_of_four(rows, stride, first, [&](int64_t r, const std::byte* w) __attribute__((always_inline)) {
      const __m512i fifth = twice(w + offsetof(BlockQ5_K, qh));  // bit s of a byte is of sub-block s
      unroll<4>([&](auto pair) __attribute__((always_inline)) {
        constexpr int p = decltype(pair)::value;
        const __m512i nibbles = rotate_halves<3, 63>(twice(w + offsetof(BlockQ5_K, qs) + 32 * p));
        put_codes(panel, r, p,
                  signed_codes<0xf8>(select_bits<0x78>(nibbles, rotate_halves<7 - 2 * p, 6 - 2 * p>(fifth))));
      });
    });
  }
};

struct ByteQ6_K {
  static constexpr int unit = 256, sub = 16;
  static constexpr bool is_folded = false, has_mins = false;
  static constexpr ByteSums sums = ByteSums::floats;  // not read; so that the encoding is that of Q4_K
  static constexpr size_t row_bytes = sizeof(BlockQ6_K);
  TANDEM_INLINE static void unpack_four(const std::byte* rows, size_t stride, int64_t first, BytePanel& panel) {
    each_of_four(rows, stride, first, [&](int64_t r, const std::byte* w) __attribute__((always_inline)) {
      // Of 128 columns the first 64 are low nibbles of 64 bytes, the next 64 the high ones; two bits more of each are in 32 bytes.
      unroll<2>([&](auto half) __attribute__((always_inline)) {
        constexpr int h = decltype(half)::value;
        const __m512i nibbles = words_at(w + offsetof(BlockQ6_K, ql) + 64 * h);
        const __m512i bits = twice(w + offsetof(BlockQ6_K, qh) + 32 * h);
        put_codes(panel, r, 2 * h,
                  signed_codes<0xfc>(select_bits<0x3c>(rotate_halves<2, 2>(nibbles), rotate_halves<6, 4>(bits))));
        put_codes(
            panel, r, 2 * h + 1,
            signed_codes<0xfc>(select_bits<0x3c>(rotate_halves<62, 62>(nibbles), rotate_halves<2, 0>(bits))));
      });
      uint16_t d;
      std::memcpy(&d, w + offsetof(BlockQ6_K, d), sizeof d);
      const __m128 unit_of_codes = _mm_mul_ss(_mm_cvtph_ps(_mm_cvtsi32_si128(d)), _mm_set_ss(0.25f));
      const __m512i integers = _mm512_cvtepi8_epi32(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(w + offsetof(BlockQ6_K, scales))));
      _mm512_store_ps(panel.scales + 16 * r,
                      _mm512_mul_ps(_mm512_cvtepi32_ps(integers), _mm512_broadcastss_ps(unit_of_codes)));
    });
  }
};

// ---- Codes times their scales ----

// 16 places that bytes are looked up at: those of a pair's four scales, among the products of 16 scales with a code.
template <int pair>
TANDEM_INLINE __m512i places_of_scales() {
  constexpr auto four = [](int i) { return 0x01010101 * (4 * pair + i); };
  return _mm512_setr_epi32(four(0), four(0), four(0), four(0), four(1), four(1), four(1), four(1), four(2),
                           four(2), four(2), four(2), four(3), four(3), four(3), four(3));
}
TANDEM_INLINE __m512i four_lanes(__m128i a, __m128i b, __m128i c, __m128i d) {
  const __m512i low = _mm512_castsi256_si512(_mm256_set_m128i(b, a));
  return _mm512_inserti64x4(low, _mm256_set_m128i(d, c), 1);
}
// Of 128 columns bits 2 i and 2 i + 1 of a byte are the i-th 32 columns'. Those of a pair of 32, as bits 4 and 5.
template <int pair>
TANDEM_INLINE __m512i two_bits(const std::byte* qs) {
  constexpr int i = 2 * (pair % 2);
  return rotate_halves<(4 - 2 * i) & 63, (2 - 2 * i) & 63>(twice(qs + pair / 2 * 32));
}
TANDEM_INLINE float half_at(const std::byte* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
}

struct ByteQ2_K {
  static constexpr int unit = 256, sub = 16;
  static constexpr bool is_folded = true;
  static constexpr ByteSums sums = ByteSums::tiles;
  static constexpr size_t row_bytes = sizeof(BlockQ2_K);
  TANDEM_INLINE static void unpack_four(const std::byte* rows, size_t stride, int64_t first, BytePanel& panel) {
    each_of_four(rows, stride, first, [&](int64_t r, const std::byte* w) __attribute__((always_inline)) {
      const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(w + offsetof(BlockQ2_K, scales)));
      const __m128i nibble = _mm_set1_epi8(0x0f), one = _mm_and_si128(both, nibble);
      const __m128i two = _mm_add_epi8(one, one);
      const __m512i products = four_lanes(_mm_setzero_si128(), one, two, _mm_add_epi8(one, two));
      unroll<4>([&](auto pair) __attribute__((always_inline)) {
        constexpr int p = decltype(pair)::value;
        const __m512i places = _mm512_ternarylogic_epi32(two_bits<p>(w + offsetof(BlockQ2_K, qs)), all_bytes(0x30),
                                                         places_of_scales<p>(), 0xea);  // (a & b) | c
        put_codes(panel, r, p, _mm512_permutexvar_epi8(places, products));
      });
      panel.scales[r] = half_at(w + offsetof(BlockQ2_K, d));
      const __m128i mins = _mm_and_si128(_mm_srli_epi16(both, 4), nibble);
      panel.mins[r] = -half_at(w + offsetof(BlockQ2_K, dmin));
      const __m256i twice_mins = _mm256_set_m128i(_mm_slli_epi16(mins, 4), mins);
      _mm512_store_si512(panel.min_codes[r], _mm512_zextsi256_si512(twice_mins));
    });
  }
};

// A code is -4 to 3, a scale -32 to 31. Minus their product is a signed byte.
struct ByteQ3_K {
  static constexpr int unit = 256, sub = 16;
  static constexpr bool is_folded = true;
  static constexpr ByteSums sums = ByteSums::floats;  // not read; so that the encoding is that of Q4_K
  static constexpr size_t row_bytes = sizeof(BlockQ3_K);
  TANDEM_INLINE static void unpack_four(const std::byte* rows, size_t stride, int64_t first, BytePanel& panel) {
    each_of_four(rows, stride, first, [&](int64_t r, const std::byte* w) __attribute__((always_inline)) {
      // Scales: their lower four bits are in eight bytes, the upper two in four more.
      int64_t eight;
      int32_t four;
      std::memcpy(&eight, w + offsetof(BlockQ3_K, scales), sizeof eight);
      std::memcpy(&four, w + offsetof(BlockQ3_K, scales) + 8, sizeof four);
      const __m128i low = _mm_and_si128(_mm_srlv_epi32(_mm_set1_epi64x(eight), _mm_setr_epi32(0, 0, 4, 4)),
                                        _mm_set1_epi8(0x0f));
      const __m128i high = _mm_and_si128(_mm_srlv_epi32(_mm_set1_epi32(four), _mm_setr_epi32(0, 2, 4, 6)),
                                         _mm_set1_epi8(0x03));
      const __m128i one = _mm_sub_epi8(_mm_or_si128(low, _mm_slli_epi16(high, 4)), _mm_set1_epi8(32));
      const __m128i zero = _mm_setzero_si128(), two = _mm_add_epi8(one, one), three = _mm_add_epi8(one, two);
      const __m512i negative = four_lanes(_mm_add_epi8(two, two), three, two, one);
      const __m512i positive =
          four_lanes(zero, _mm_sub_epi8(zero, one), _mm_sub_epi8(zero, two), _mm_sub_epi8(zero, three));
      const __m512i third = twice(w + offsetof(BlockQ3_K, hmask));  // bit i of a byte is of the i-th 32 columns
      unroll<4>([&](auto pair) __attribute__((always_inline)) {
        constexpr int p = decltype(pair)::value;
        const __m512i bits = select_bits<0x30>(two_bits<p>(w + offsetof(BlockQ3_K, qs)),
                                               rotate_halves<(6 - 2 * p) & 63, (5 - 2 * p) & 63>(third));
        const __m512i places =
            _mm512_ternarylogic_epi32(bits, all_bytes(0x70), places_of_scales<p>(), 0xea);  // (a & b) | c
        put_codes(panel, r, p, _mm512_permutex2var_epi8(negative, places, positive));
      });
      panel.scales[r] = -half_at(w + offsetof(BlockQ3_K, d));
    });
  }
};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
