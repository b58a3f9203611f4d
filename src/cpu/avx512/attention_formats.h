// Codes of Q8_0, Q4_0 and the KIVI types' caches in the two orders that attention_codes.h multiplies them in, as unsigned
// bytes: a code is the byte less kBias. A format's blocks have kBytes, their scale first, and 32 columns; keys of KIVI types
// have their scales elsewhere (gguf/kivi.h).
//
// keys: 24 (Q8_0), 8 (four bits) or 14 (two) shuffles for a block of 16 rows; values: 8 or 4 of 8 rows.
#pragma once

#include <cstddef>

#include "gguf/blocks.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// kZero 128: unsigned; 0: as they are.
template <int kZero>
struct CodesBytes {
  static constexpr int kBytes = sizeof(BlockQ8_0), kBias = kZero;

  // Lane i of to[j]: columns 4 * j .. 4 * j + 3 of row i's block.
  TANDEM_INLINE static void keys(const std::byte* block, size_t row_bytes, __m512i (&to)[8]) {
    // Lanes of 4: columns 4 * j and 16 + 4 * j of rows 0 .. 3, then of rows 4 .. 7; half[1]: of rows 8 .. 15.
    __m512i half[2][4];
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      __m512i z[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) z[i] = two_rows(block, row_bytes, 8 * h + i, 8 * h + i + 4);
      transpose_lanes(z, half[h]);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      to[j] = _mm512_shuffle_i32x4(half[0][j], half[1][j], 0x88);
      to[j + 4] = _mm512_shuffle_i32x4(half[0][j], half[1][j], 0xdd);
    }
  }

  // Lane c of to[t][i]: a column of rows 4 * t .. 4 * t + 3.
  TANDEM_INLINE static void values(const std::byte* block, size_t row_bytes, __m512i (&to)[2][2]) {
    const __m512i pairs = pair_words();
#pragma GCC unroll 2
    for (int t = 0; t < 2; ++t) {
      const __m512i even = two_rows(block, row_bytes, 4 * t, 4 * t + 2);
      const __m512i odd = two_rows(block, row_bytes, 4 * t + 1, 4 * t + 3);
      to[t][0] = _mm512_permutexvar_epi16(pairs, _mm512_unpacklo_epi8(even, odd));
      to[t][1] = _mm512_permutexvar_epi16(pairs, _mm512_unpackhi_epi8(even, odd));
    }
  }

  // From the columns of to[..][0] and to[..][1], 0 .. 7, 16 .. 23 and 8 .. 15, 24 .. 31, to 0 .. 15 and 16 .. 31.
  TANDEM_INLINE static void put_in_order(Vec& a, Vec& b) {
    const Vec low = _mm512_shuffle_f32x4(a, b, 0x44);
    b = _mm512_shuffle_f32x4(a, b, 0xee);
    a = low;
  }

  // 4x4 words of each quarter.
  TANDEM_INLINE static void transpose_lanes(const __m512i (&z)[4], __m512i (&to)[4]) {
    const __m512i a = _mm512_unpacklo_epi32(z[0], z[1]), b = _mm512_unpackhi_epi32(z[0], z[1]);
    const __m512i c = _mm512_unpacklo_epi32(z[2], z[3]), d = _mm512_unpackhi_epi32(z[2], z[3]);
    to[0] = _mm512_unpacklo_epi64(a, c);
    to[1] = _mm512_unpackhi_epi64(a, c);
    to[2] = _mm512_unpacklo_epi64(b, d);
    to[3] = _mm512_unpackhi_epi64(b, d);
  }

 private:
  // Rows i and j.
  TANDEM_INLINE static __m512i two_rows(const std::byte* block, size_t row_bytes, int i, int j) {
    const auto row = [&](int r) {
      const std::byte* from = block + static_cast<size_t>(r) * row_bytes + offsetof(BlockQ8_0, qs);
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    };
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(row(i)), row(j), 1);
    return kZero == 0 ? both : _mm512_xor_si512(both, _mm512_set1_epi8(-128));
  }
  // Words i and 16 + i side by side.
  TANDEM_INLINE static __m512i pair_words() {
    const __m512i i = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_or_si512(i, _mm512_slli_epi32(_mm512_add_epi32(i, _mm512_set1_epi32(16)), 16));
  }
};

using CodesQ8 = CodesBytes<128>;

// Blocks of kSize bytes with 16 bytes of codes at kAt.
template <int kAt, int kSize, int kZero>
struct CodesNibbles {
  static constexpr int kBytes = kSize, kBias = kZero;

  TANDEM_INLINE static void keys(const std::byte* block, size_t row_bytes, __m512i (&to)[8]) {
    __m512i z[4], bytes[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) z[i] = four_rows(block, row_bytes, i, 4);
    CodesQ8::transpose_lanes(z, bytes);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      to[j] = low_nibbles(bytes[j]);
      to[j + 4] = high_nibbles(bytes[j]);
    }
  }

  TANDEM_INLINE static void values(const std::byte* block, size_t row_bytes, __m512i (&to)[2][2]) {
    const __m512i even = four_rows(block, row_bytes, 0, 2), odd = four_rows(block, row_bytes, 1, 2);
    const __m512i low = _mm512_unpacklo_epi8(even, odd), high = _mm512_unpackhi_epi8(even, odd);
    // Of each half of `low` and `high`, words i and 8 + i side by side.
    const __m512i i = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 32, 33, 34, 35, 36, 37, 38, 39);
    const __m512i pairs =
        _mm512_or_si512(i, _mm512_slli_epi32(_mm512_add_epi32(i, _mm512_set1_epi32(8)), 16));
    const __m512i upper = _mm512_add_epi16(pairs, _mm512_set1_epi16(16));
    const __m512i bytes[2] = {_mm512_permutex2var_epi16(low, pairs, high),
                              _mm512_permutex2var_epi16(low, upper, high)};
#pragma GCC unroll 2
    for (int t = 0; t < 2; ++t) {
      to[t][0] = low_nibbles(bytes[t]);
      to[t][1] = high_nibbles(bytes[t]);
    }
  }

  TANDEM_INLINE static void put_in_order(Vec&, Vec&) {}

 private:
  // Rows i, i + step, i + 2 * step and i + 3 * step.
  TANDEM_INLINE static __m512i four_rows(const std::byte* block, size_t row_bytes, int i, int step) {
    const auto row = [&](int r) {
      const std::byte* from = block + static_cast<size_t>(i + r * step) * row_bytes + kAt;
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    };
    __m512i z = _mm512_castsi128_si512(row(0));
    z = _mm512_inserti32x4(z, row(1), 1);
    z = _mm512_inserti32x4(z, row(2), 2);
    return _mm512_inserti32x4(z, row(3), 3);
  }
  TANDEM_INLINE static __m512i low_nibbles(__m512i v) {
    return _mm512_and_si512(v, _mm512_set1_epi8(15));
  }
  TANDEM_INLINE static __m512i high_nibbles(__m512i v) {
    return low_nibbles(_mm512_srli_epi16(v, 4));
  }
};
using CodesQ4 = CodesNibbles<offsetof(BlockQ4_0, qs), sizeof(BlockQ4_0), 8>;

// Two bits, as BlockKivi2 has them: byte j has those of columns j, j + 8, j + 16 and j + 24.
template <int kAt, int kSize>
struct CodesPairs {
  static constexpr int kBytes = kSize, kBias = 0;

  TANDEM_INLINE static void keys(const std::byte* block, size_t row_bytes, __m512i (&to)[8]) {
    // Words 0 and 1 of rows 0 .. 7, and of rows 8 .. 15.
    __m512i half[2];
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      __m128i two[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
        two[i] = _mm_unpacklo_epi64(row(block, row_bytes, 8 * h + 2 * i),
                                    row(block, row_bytes, 8 * h + 2 * i + 1));
      half[h] = _mm512_inserti32x4(_mm512_castsi128_si512(two[0]), two[1], 1);
      half[h] = _mm512_inserti32x4(_mm512_inserti32x4(half[h], two[2], 2), two[3], 3);
    }
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i first = _mm512_permutex2var_epi32(half[0], even, half[1]);
    const __m512i second =
        _mm512_permutex2var_epi32(half[0], _mm512_add_epi32(even, _mm512_set1_epi32(1)), half[1]);
#pragma GCC unroll 4
    for (int part = 0; part < 4; ++part) {
      to[2 * part] = codes(first, _mm512_set1_epi16(static_cast<short>(2 * part)));
      to[2 * part + 1] = codes(second, _mm512_set1_epi16(static_cast<short>(2 * part)));
    }
  }

  TANDEM_INLINE static void values(const std::byte* block, size_t row_bytes, __m512i (&to)[2][2]) {
#pragma GCC unroll 2
    for (int t = 0; t < 2; ++t) {
      const __m128i a = _mm_unpacklo_epi8(row(block, row_bytes, 4 * t), row(block, row_bytes, 4 * t + 1));
      const __m128i b = _mm_unpacklo_epi8(row(block, row_bytes, 4 * t + 2), row(block, row_bytes, 4 * t + 3));
      const __m256i both = _mm256_set_m128i(_mm_unpackhi_epi16(a, b), _mm_unpacklo_epi16(a, b));
      const __m512i bytes = _mm512_inserti64x4(_mm512_castsi256_si512(both), both, 1);
      to[t][0] = codes(bytes, halves(0, 2));
      to[t][1] = codes(bytes, halves(4, 6));
    }
  }

  TANDEM_INLINE static void put_in_order(Vec&, Vec&) {}

 private:
  TANDEM_INLINE static __m128i row(const std::byte* block, size_t row_bytes, int i) {
    return _mm_loadl_epi64(
        reinterpret_cast<const __m128i*>(block + static_cast<size_t>(i) * row_bytes + kAt));
  }
  TANDEM_INLINE static __m512i halves(short low, short high) {
    return _mm512_inserti64x4(_mm512_set1_epi16(low), _mm256_set1_epi16(high), 1);
  }
  TANDEM_INLINE static __m512i codes(__m512i bytes, __m512i shifts) {
    return _mm512_and_si512(_mm512_srlv_epi16(bytes, shifts), _mm512_set1_epi8(3));
  }
};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
