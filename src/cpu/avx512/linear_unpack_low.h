// Unpacks strips, as linear_unpack.h does, of types whose codes are not bits of their own: the IQ1 formats' vectors of a grid and TQ1_0's
// ternary digits. Against the dot products and panels of AVX2, which took these before, two cores of a Zen 5 with VNNI, 4096 x 4096 from
// memory, one token, four, eight, 64 and 256: IQ1_S 1.4, 1.9, 3.2, 3.2 and 3.3 times as fast, IQ1_M 1.4, 1.7, 2.9, 2.8, 2.8, TQ1_0 1.9, 2.2,
// 3.7, 2.3, 2.2. A gather looks up eight columns of 16 rows.
#pragma once

#include "cpu/avx512/linear_unpack.h"
#include "gguf/grids.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// ---- IQ1 ----

// The vectors of the grid: byte j has code j in its low nibble and code 4 + j in its high one.
struct Iq1Grid {
  uint32_t vectors[2048];
};
constexpr Iq1Grid kIq1Grid = [] {
  Iq1Grid grid{};
  for (size_t i = 0; i < 2048; ++i) {
    for (int j = 0; j < 8; ++j) grid.vectors[i] |= (kGrids.iq1[i] >> 2 * j & 3u) << (8 * (j % 4) + j / 4 * 4);
  }
  return grid;
}();

// Two vectors of the panel, from number `at` on: the eight columns that byte v of `low` and three bits of `high` from bit `first` on are
// the index of. In eighths, weights are 8 (code - 1) + 1, or - 1 where bit `sign` of `high` is set; bytes are 9 more.
template <int at, int v, int first, int sign, class Sink>
TANDEM_INLINE void put_iq1(__m512i low, __m512i high, Sink& sink) {
  const __m512i byte = byte_of<v>(low);
  const __m512i index = _mm512_ternarylogic_epi32(words_shifted<first - 8>(high), _mm512_set1_epi32(0x700), byte, 0xea);
  const __m512i codes = _mm512_i32gather_epi32(index, kIq1Grid.vectors, 4);
  const __m512i moved = _mm512_maskz_mov_epi32(_mm512_testn_epi32_mask(high, _mm512_set1_epi32(static_cast<int>(1u << sign))), bytes(2));
  const __m512i eights = bytes(0x18);
  put<at>(sink, _mm512_ternarylogic_epi32(_mm512_slli_epi32(codes, 3), eights, moved, 0xea));
  put<at + 1>(sink, _mm512_ternarylogic_epi32(_mm512_srli_epi32(codes, 1), eights, moved, 0xea));
}

struct UnpackIQ1_S {
  static constexpr Shape shape{256, 32, 9, 0, false};
  static constexpr size_t block_bytes = sizeof(BlockIQ1_S);
  static constexpr int pauses = 2;
  template <class Sink>
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, Sink& sink) {
    const __m512 d = _mm512_mul_ps(low_halves(rows.words(at)), _mm512_set1_ps(0.125f));
    const Words8 q = load_words8(rows, at + offsetof(BlockIQ1_S, qs));
    const Words4 high = load_words4(rows, at + offsetof(BlockIQ1_S, qh));
    unroll<8>([&](auto sub) __attribute__((always_inline)) {
      constexpr int s = decltype(sub)::value, bit = s % 2 * 16;
      if constexpr (s % 4 == 0) sink.pause();
      const __m512i word = high.w[s / 2];
      put<9 * s + 8>(sink, odd_scale<bit + 12, 3>(word, d));
      unroll<4>([&](auto v) __attribute__((always_inline)) {
        put_iq1<9 * s + 2 * v.value, v.value, bit + 3 * v.value, bit + 15>(q.w[s], word, sink);
      });
    });
  }
};

struct UnpackIQ1_M {
  static constexpr Shape shape{256, 16, 9, 0, false};
  static constexpr size_t block_bytes = sizeof(BlockIQ1_M);
  static constexpr int pauses = 2;
  template <class Sink>
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, Sink& sink) {
    const Words8 q = load_words8(rows, at + offsetof(BlockIQ1_M, qs));
    const Words4 high = load_words4(rows, at + offsetof(BlockIQ1_M, qh));
    const Words4 tail = load_words4(rows, at + sizeof(BlockIQ1_M) - 16);  // the last two words are the scales
    const __m512 d = iq1_m_eighth_of_d(tail.w[2], tail.w[3]);
    unroll<16>([&](auto sub) __attribute__((always_inline)) {
      constexpr int s = decltype(sub)::value;  // of 16 columns; their scale is three bits of half a word, their nibbles a byte
      if constexpr (s % 8 == 0) sink.pause();
      put<5 * s + 4>(sink, odd_scale<s / 4 % 2 * 16 + s % 4 * 3, 3>(tail.w[2 + s / 8], d));
      unroll<2>([&](auto i) __attribute__((always_inline)) {
        constexpr int v = s % 2 * 2 + decltype(i)::value, first = s % 4 * 8 + decltype(i)::value * 4;
        put_iq1<5 * s + 2 * decltype(i)::value, v, first, first + 3>(q.w[s / 2], high.w[s / 4], sink);
      });
    });
  }
};

// ---- TQ1_0 ----

// The first ternary digits of bytes that are fractions of 256.
TANDEM_INLINE __m512i ternary_digits(__m512i v) {
  const __m512i one_or_more = _mm512_maskz_mov_epi8(_mm512_cmpge_epu8_mask(v, bytes(86)), bytes(1));
  return _mm512_mask_mov_epi8(one_or_more, _mm512_cmpge_epu8_mask(v, bytes(171)), bytes(2));
}
TANDEM_INLINE __m512i three_times(__m512i v) {
  return _mm512_add_epi8(_mm512_add_epi8(v, v), v);
}

struct UnpackTQ1_0 {
  static constexpr Shape shape{256, 256, 1, 0, false};
  static constexpr size_t block_bytes = sizeof(BlockTQ1_0);
  static constexpr int pauses = 2;
  // n_digits of every byte of n words, the first digits of all of them first.
  template <int to, int n, int n_digits, class Sink>
  TANDEM_INLINE static void put_digits(__m512i (&words)[n], Sink& sink) {
    unroll<n_digits>([&](auto digit) __attribute__((always_inline)) {
      unroll<n>([&](auto i) __attribute__((always_inline)) {
        put<to + n * digit.value + i.value>(sink, ternary_digits(words[i.value]));
        words[i.value] = three_times(words[i.value]);
      });
    });
  }
  template <class Sink>
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, Sink& sink) {
    put<64>(sink, high_halves(rows.words(at + sizeof(BlockTQ1_0) - 4)));  // d: the last two bytes
    sink.pause();
    Words8 first = load_words8(rows, at);
    put_digits<0, 8, 5>(first.w, sink);
    sink.pause();
    Words4 second = load_words4(rows, at + 32);
    put_digits<40, 4, 5>(second.w, sink);
    __m512i last[1] = {rows.words(at + offsetof(BlockTQ1_0, qh))};
    put_digits<60, 1, 4>(last, sink);
  }
};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
