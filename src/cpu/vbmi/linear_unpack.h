// Unpacks strips of the IQ1, IQ2 and IQ3 formats, as avx512/linear_unpack.h does for the others, with the grids looked up
// by byte permutations. Needs VBMI (Ice Lake, Zen 4 and later) and GFNI, which all of these have.
//
// Lookup. A lane is a row, a byte of it the index of a vector: 64 indices a lookup. A grid is two planes of bytes:
// columns 0 1 | 2 3 of an IQ3 vector as nibbles, codes 0..3 | 4..7 of an IQ2 vector in two bits each. A vpermi2b looks 64
// indices up in 128 entries; masks of the index's higher bits choose among 2, 4 or 8 of them. So a plane of 256, 512 or
// 1024 entries takes 3, 7 or 15 operations for 64 indices, 256 (IQ3) or 512 (IQ2) weights. Tables are loaded once for
// four vectors of indices.
//
// Order. What comes out are vectors whose lane has a column of each of four vectors (IQ3), or of two vectors and their
// second halves (IQ2): columns j, 4 + j, 8 + j, 12 + j of 16. The activations are encoded in this order (Order::fours),
// so nothing is put in order here.
//
// Signs. A multishift spreads the signs of 16 columns, four to a byte. IQ2: two codes and their signs are an index of six
// bits into a table of signed levels. IQ3: code + 8 is flipped to 7 - code by an exclusive or with the signs, spread to
// nibbles by a product with a matrix of bits; so a level 2 code + 1 of IQ3_S becomes 2 u - 15 of the nibble u. Where the
// eighth sign is the parity of seven, such a product adds it.
//
// Floors of decode, in cycles for 256 weights of a Zen 4 at 3.7 GHz, which starts two operations of 64 bytes a cycle (one
// if they are shuffles or products); and what was measured, weights in L2, and in memory with two cores reading 14 GB/s each:
//                          IQ2_XXS  IQ2_XS  IQ2_S  IQ3_XXS  IQ3_S  Q4_K
//   operations                  25      33     41       33     39    27
//   their floor                 13      17     21       17     20    14
//   floor of the bytes          17      19     21       25     28    37
//   measured, L2                21      29     33       27     33    18
//   measured, memory            26      33     39       36     42    36
// IQ1, of 2048 entries and without signs, takes some 62 operations for 64 indices. Where gathers look up eight columns at a time
// (avx512/linear_unpack_low.h) two cores of a Zen 5 took for one token, eight and 64 of IQ1_S 1.37, 1.24 and 1.09 times as long.
// The rest is lost to phases: transposing and lookups wait for the two ports that permute, unpacking and products for the
// two that multiply, and the window of 320 instructions holds one phase. Smaller batches mix them better but load more.
#pragma once

#include "cpu/vbmi/grid_lookup.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

struct UnpackIQ2_XXS {
  static constexpr Shape shape{256, 32, kBias, 0, false};
  static constexpr size_t block_bytes = sizeof(BlockIQ2_XXS);
  static constexpr int pauses = 2;
  template <class Sink>
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, Sink& sink) {
    const __m512 d = scaled_d(rows, at, 0.125f);
    unroll<2>([&](auto half) __attribute__((always_inline)) {  // of 128 columns
      constexpr int h = decltype(half)::value;
      sink.pause();
      const Words8 q = load_words8(rows, at + 2 + 32 * h);
      Indices index[kBatch];
      unroll<kBatch>([&](auto i)
                         __attribute__((always_inline)) { index[i.value] = indices(q.w[2 * i.value]); });
      const Planes planes = look_up_planes(kIq2Xxs, index);
      unroll<kBatch>([&](auto i) __attribute__((always_inline)) {
        constexpr int to = 36 * h + 9 * decltype(i)::value;
        const __m512i word = q.w[2 * i.value + 1];
        put_scale<to + 8>(sink, odd_scale<28, 4>(word, d));
        put_iq2<to, 4>(planes.of[0][i.value], planes.of[1][i.value], signs_of_sevens(word), sink);
      });
    });
  }
};

// Of two words of 16-bit codes: byte `b` of every code, in a lane.
template <int b>
TANDEM_INLINE __m512i bytes_of_codes(__m512i first, __m512i second) {
  return _mm512_permutex2var_epi8(first, lane_bytes(b, b + 2, 64 + b, 66 + b), second);
}

struct UnpackIQ2_XS {
  static constexpr Shape shape{256, 16, kBias, 0, false};
  static constexpr size_t block_bytes = sizeof(BlockIQ2_XS);
  static constexpr int pauses = 2;
  template <class Sink>
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, Sink& sink) {
    const __m512 d = scaled_d(rows, at, 0.125f);
    const Words4 tail = load_words4(rows, at + 58);            // scales are bytes 66..73
    unroll<2>([&](auto half) __attribute__((always_inline)) {  // of 128 columns
      constexpr int h = decltype(half)::value;
      sink.pause();
      const Words8 q = load_words8(rows, at + 2 + 32 * h);
      Indices index[kBatch];
      __m512i high[kBatch];
      unroll<kBatch>([&](auto i) __attribute__((always_inline)) {
        const __m512i codes = q.w[2 * i.value], more = q.w[2 * i.value + 1];
        high[i.value] = bytes_of_codes<1>(codes, more);
        index[i.value] =
            indices(bytes_of_codes<0>(codes, more), _mm512_test_epi8_mask(high[i.value], bytes(1)));
      });
      const Planes planes = look_up_planes(kIq2Xs, index);
      unroll<kBatch>([&](auto i) __attribute__((always_inline)) {
        constexpr int n = decltype(i)::value, to = 40 * h + 10 * n;
        put_scale<to + 4>(sink, odd_scale<8 * n, 4>(tail.w[2 + h], d));
        put_scale<to + 9>(sink, odd_scale<8 * n + 4, 4>(tail.w[2 + h], d));
        put_iq2<to, 5>(planes.of[0][i.value], planes.of[1][i.value], signs_of_high_sevens(high[i.value]),
                       sink);
      });
    });
  }
};

struct UnpackIQ2_S {
  static constexpr Shape shape{256, 16, kBias, 0, false};
  static constexpr size_t block_bytes = sizeof(BlockIQ2_S);
  static constexpr int pauses = 2;
  template <class Sink>
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, Sink& sink) {
    const __m512 d = scaled_d(rows, at, 0.125f);
    const Words8 q = load_words8(rows, at + 2), signs = load_words8(rows, at + 34);
    const Words4 tail = load_words4(rows, at + 66);            // qh, scales
    unroll<2>([&](auto half) __attribute__((always_inline)) {  // of 128 columns
      constexpr int h = decltype(half)::value;
      sink.pause();
      Indices index[kBatch];
      unroll<kBatch>([&](auto i) __attribute__((always_inline)) {
        constexpr int n = decltype(i)::value;
        const __m512i high = byte_four_times<n>(tail.w[h]);
        index[i.value] = indices(q.w[4 * h + n], _mm512_test_epi8_mask(high, four_bytes(1, 4, 16, 64)),
                                 _mm512_test_epi8_mask(high, four_bytes(2, 8, 32, 128)));
      });
      const Planes planes = look_up_planes(kIq2S, index);
      unroll<kBatch>([&](auto i) __attribute__((always_inline)) {
        constexpr int n = decltype(i)::value, to = 40 * h + 10 * n;
        put_scale<to + 4>(sink, odd_scale<8 * n, 4>(tail.w[2 + h], d));
        put_scale<to + 9>(sink, odd_scale<8 * n + 4, 4>(tail.w[2 + h], d));
        put_iq2<to, 5>(planes.of[0][i.value], planes.of[1][i.value], signs.w[4 * h + n], sink);
      });
    });
  }
};

// Bytes are 8 code + 1 +- 1: weights in eighths, plus 9.
struct UnpackIQ1_S {
  static constexpr Shape shape{256, 32, 9, 0, false};
  static constexpr size_t block_bytes = sizeof(BlockIQ1_S);
  static constexpr int pauses = 2;
  template <class Sink>
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, Sink& sink) {
    const __m512 d = scaled_d(rows, at, 0.125f);
    const Words8 q = load_words8(rows, at + offsetof(BlockIQ1_S, qs));
    const Words4 high = load_words4(rows, at + offsetof(BlockIQ1_S, qh));
    unroll<2>([&](auto half) __attribute__((always_inline)) {  // of 128 columns
      constexpr int h = decltype(half)::value;
      sink.pause();
      Indices index[kBatch];
      unroll<kBatch>([&](auto i) __attribute__((always_inline)) {
        constexpr int n = decltype(i)::value;
        index[n] = indices_of_iq1(q.w[4 * h + n], bits_apart<n % 2 * 16, 3>(high.w[2 * h + n / 2]));
      });
      const Planes planes = look_up_planes(kIq1, index);
      unroll<kBatch>([&](auto i) __attribute__((always_inline)) {
        constexpr int n = decltype(i)::value, to = 9 * (4 * h + n), bit = n % 2 * 16;
        const __m512i word = high.w[2 * h + n / 2];
        put_scale<to + 8>(sink, odd_scale<bit + 12, 3>(word, d));
        const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x8000u << bit));
        const __m512i moved = _mm512_maskz_mov_epi32(_mm512_testn_epi32_mask(word, sign), bytes(2));
        put_iq1<to>(codes_of_half<0>(planes.of[0][n], planes.of[1][n]), moved, sink);
        put_iq1<to + 4>(codes_of_half<1>(planes.of[0][n], planes.of[1][n]), moved, sink);
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
    unroll<2>([&](auto half) __attribute__((always_inline)) {  // of 128 columns
      constexpr int h = decltype(half)::value;
      sink.pause();
      Indices index[kBatch];
      __m512i nibbles[kBatch];
      unroll<kBatch>([&](auto i) __attribute__((always_inline)) {
        constexpr int n = decltype(i)::value;
        nibbles[n] = bits_apart<n % 2 * 16, 4>(high.w[2 * h + n / 2]);
        index[n] = indices_of_iq1(q.w[4 * h + n], nibbles[n]);
      });
      const Planes planes = look_up_planes(kIq1, index);
      unroll<kBatch>([&](auto i) __attribute__((always_inline)) {
        constexpr int n = decltype(i)::value;
        const __m512i moved = _mm512_maskz_mov_epi8(_mm512_testn_epi8_mask(nibbles[n], bytes(8)), bytes(2));
        unroll<2>([&](auto part) __attribute__((always_inline)) {  // of 16 columns
          constexpr int p = decltype(part)::value, to = 40 * h + 10 * n + 5 * p;
          put_scale<to + 4>(sink, odd_scale<n / 2 * 16 + n % 2 * 6 + p * 3, 3>(tail.w[2 + h], d));
          const __m512i of_part = _mm512_shuffle_epi8(
              moved, _mm512_broadcast_i32x4(_mm_add_epi8(_mm_setr_epi8(0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13), _mm_set1_epi8(2 * p))));
          put_iq1<to>(codes_of_half<p>(planes.of[0][n], planes.of[1][n]), of_part, sink);
        });
      });
    });
  }
};

struct UnpackIQ3_XXS {
  static constexpr Shape shape{256, 32, kBias, 0, false};
  static constexpr size_t block_bytes = sizeof(BlockIQ3_XXS);
  static constexpr int pauses = 4;
  template <int to, class Sink>
  TANDEM_INLINE static void put_16(const Nibbles& q, Sink& sink) {
    unroll<2>([&](auto i) __attribute__((always_inline)) {
      const __m512i pair = q.pair[i.value];
      put_bytes<to + 2 * i.value>(sink, level(kIq3XxsLevels, pair));
      put_bytes<to + 2 * i.value + 1>(sink, level(kIq3XxsLevels, _mm512_srli_epi16(pair, 4)));
    });
  }
  template <class Sink>
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, Sink& sink) {
    const __m512 d = scaled_d(rows, at, 0.25f);
    const Words8 words = load_words8(rows, at + 66);
    unroll<4>([&](auto quarter) __attribute__((always_inline)) {  // of 64 columns
      constexpr int p = decltype(quarter)::value;
      sink.pause();
      const Words4 q = load_words4(rows, at + 2 + 16 * p);
      Indices index[kBatch];
      unroll<kBatch>([&](auto i) __attribute__((always_inline)) { index[i.value] = indices(q.w[i.value]); });
      const Planes planes = look_up_planes(kIq3Xxs, index);
      unroll<kBatch / 2>([&](auto i) __attribute__((always_inline)) {  // of 32 columns
        constexpr int n = decltype(i)::value, block = 2 * p + n, to = 9 * block;
        const __m512i signs = signs_of_sevens(words.w[block]);
        put_scale<to + 8>(sink, odd_scale<28, 4>(words.w[block], d));
        unroll<2>([&](auto half) __attribute__((always_inline)) {
          constexpr int h = decltype(half)::value, v = 2 * n + h;
          put_16<to + 4 * h>(with_signs(planes.of[0][v], planes.of[1][v], sign_nibbles<h, 0>(signs)), sink);
        });
      });
    });
  }
};

struct UnpackIQ3_S {
  static constexpr Shape shape{256, 32, 15, 0, false};
  static constexpr size_t block_bytes = sizeof(BlockIQ3_S);
  static constexpr int pauses = 4;
  // A weight is 2 u - 15 of its nibble u: bytes are twice the nibbles.
  template <int to, class Sink>
  TANDEM_INLINE static void put_16(const Nibbles& q, Sink& sink) {
    unroll<2>([&](auto i) __attribute__((always_inline)) {
      put_bytes<to + 2 * i.value>(sink, multiply_bits(q.pair[i.value], 0x0001020408000000));
      put_bytes<to + 2 * i.value + 1>(sink, multiply_bits(q.pair[i.value], 0x0010204080000000));
    });
  }
  template <class Sink>
  TANDEM_INLINE static void unpack(const StripRows& rows, size_t at, Sink& sink) {
    const __m512 d = scaled_d(rows, at, 1.0f);
    const Words4 before = load_words4(rows, at + 62);             // two words of qh, then one of signs
    const Words8 signs = load_words8(rows, at + 78);              // seven words, then the scales
    unroll<4>([&](auto quarter) __attribute__((always_inline)) {  // of 64 columns
      constexpr int p = decltype(quarter)::value;
      sink.pause();
      const Words4 q = load_words4(rows, at + 2 + 16 * p);
      Indices index[kBatch];
      unroll<kBatch / 2>([&](auto i) __attribute__((always_inline)) {
        constexpr int n = decltype(i)::value, block = 2 * p + n;
        const __m512i high = byte_four_times<block % 4>(before.w[1 + block / 4]);
        index[2 * n] = indices(q.w[2 * n], _mm512_test_epi8_mask(high, four_bytes(1, 2, 4, 8)));
        index[2 * n + 1] = indices(q.w[2 * n + 1], _mm512_test_epi8_mask(high, four_bytes(16, 32, 64, 128)));
      });
      const Planes planes = look_up_planes(kIq3S, index);
      unroll<kBatch / 2>([&](auto i) __attribute__((always_inline)) {  // of 32 columns
        constexpr int n = decltype(i)::value, block = 2 * p + n, to = 9 * block;
        const __m512i word = block == 0 ? before.w[3] : signs.w[block == 0 ? 0 : block - 1];
        put_scale<to + 8>(sink, odd_scale<4 * block, 4>(signs.w[7], d));
        unroll<2>([&](auto half) __attribute__((always_inline)) {
          constexpr int h = decltype(half)::value, v = 2 * n + h;
          put_16<to + 4 * h>(with_signs(planes.of[0][v], planes.of[1][v], sign_nibbles<h, 0>(word)), sink);
        });
      });
    });
  }
};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
