// Vectors of a grid for 16 rows at once: lookups, signs, levels and scales. linear_unpack.h explains them.
#pragma once

#include "cpu/avx512/linear_layout.h"
#include "cpu/avx512/linear_strip.h"
#include "gguf/blocks_grid.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

constexpr int kBias = 64;  // added to every level, so that bytes are unsigned
constexpr int kBatch = 4;  // vectors of indices looked up together

TANDEM_INLINE __m512i bytes(int value) {
  return _mm512_set1_epi8(static_cast<char>(value));
}
// Four bytes in every lane.
TANDEM_INLINE __m512i four_bytes(int a, int b, int c, int d) {
  return _mm512_set1_epi32(static_cast<int>(static_cast<uint32_t>(a) | static_cast<uint32_t>(b) << 8 |
                                            static_cast<uint32_t>(c) << 16 | static_cast<uint32_t>(d) << 24));
}

// Indices for permutations: four bytes of each lane, of its own or, from 64 on, of the second operand's.
TANDEM_INLINE __m512i lane_bytes(int a, int b, int c, int d) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_add_epi8(_mm512_mullo_epi32(lane, _mm512_set1_epi32(0x04040404)), four_bytes(a, b, c, d));
}

// ---- grids ----

// Byte planes of a grid: plane p of vector i.
template <size_t N>
struct alignas(64) Grid {
  uint8_t plane[2][N];
};
// IQ2 and IQ1: four codes of two bits, as in the packed vector.
template <size_t N>
constexpr Grid<N> grid_of_iq2(const uint16_t (&packed)[N]) {
  Grid<N> grid{};
  for (size_t i = 0; i < N; ++i) {
    grid.plane[0][i] = static_cast<uint8_t>(packed[i] & 255);
    grid.plane[1][i] = static_cast<uint8_t>(packed[i] >> 8);
  }
  return grid;
}
// IQ3: two nibbles, code + 8.
template <size_t N>
constexpr Grid<N> grid_of_iq3(const uint16_t (&packed)[N]) {
  Grid<N> grid{};
  for (size_t i = 0; i < N; ++i) {
    const auto nibble = [&](int j) { return (packed[i] >> 3 * j & 7) | 8; };
    for (int p = 0; p < 2; ++p)
      grid.plane[p][i] = static_cast<uint8_t>(nibble(2 * p) | nibble(2 * p + 1) << 4);
  }
  return grid;
}
constexpr auto kIq2Xxs = grid_of_iq2(kGrids.iq2_xxs);
constexpr auto kIq2Xs = grid_of_iq2(kGrids.iq2_xs);
constexpr auto kIq2S = grid_of_iq2(kGrids.iq2_s);
constexpr auto kIq1 = grid_of_iq2(kGrids.iq1);
constexpr auto kIq3Xxs = grid_of_iq3(kGrids.iq3_xxs);
constexpr auto kIq3S = grid_of_iq3(kGrids.iq3_s);

// 64 indices: their low bytes, and masks of bits 7 to 10, as far as a grid has them.
struct Indices {
  __m512i low;
  __mmask64 bit[4];
};
TANDEM_INLINE Indices indices(__m512i low, __mmask64 bit8 = 0, __mmask64 bit9 = 0, __mmask64 bit10 = 0) {
  return {low, {_mm512_movepi8_mask(low), bit8, bit9, bit10}};
}

// to[i] = entries first .. first + 128 * 2^depth - 1 of a plane at index[i]. Depth first, so that few intermediate results
// live at once.
template <int depth>
TANDEM_INLINE void look_up(const uint8_t* first, const Indices (&index)[kBatch], __m512i (&to)[kBatch]) {
  if constexpr (depth == 0) {
    __m512i low = _mm512_load_si512(first), high = _mm512_load_si512(first + 64);
    asm("" : "+v"(low), "+v"(high));  // loaded once for all vectors: loads of 64 bytes are one a cycle
    unroll<kBatch>([&](auto i) __attribute__((always_inline)) {
      to[i.value] = _mm512_permutex2var_epi8(low, index[i.value].low, high);
    });
  } else {
    __m512i upper[kBatch];
    look_up<depth - 1>(first, index, to);
    look_up<depth - 1>(first + (64 << depth), index, upper);
    unroll<kBatch>([&](auto i) __attribute__((always_inline)) {
      to[i.value] = _mm512_mask_mov_epi8(to[i.value], index[i.value].bit[depth - 1], upper[i.value]);
    });
  }
}

// Both planes.
struct Planes {
  __m512i of[2][kBatch];
};
template <size_t N>
TANDEM_INLINE Planes look_up_planes(const Grid<N>& grid, const Indices (&index)[kBatch]) {
  constexpr int depth = N == 256 ? 1 : N == 512 ? 2 : N == 1024 ? 3 : 4;
  Planes planes;
  look_up<depth>(grid.plane[0], index, planes.of[0]);
  look_up<depth>(grid.plane[1], index, planes.of[1]);
  return planes;
}

// ---- signs ----

// Eight bits of every word from bit `first` on, then from first + step on, and so on: four bytes.
template <int first, int step>
TANDEM_INLINE __m512i bits_apart(__m512i words) {
  int64_t from = 0;
  for (int i = 0; i < 8; ++i) from |= static_cast<int64_t>((32 * (i / 4) + first + step * (i % 4)) & 63) << 8 * i;
  return _mm512_multishift_epi64_epi8(_mm512_set1_epi64(from), words);
}

// Sign bits of half h of 32 columns, four a byte, to bit `to` of four bytes. The other bits are anything.
template <int h, int to>
TANDEM_INLINE __m512i sign_nibbles(__m512i signs) {
  return bits_apart<16 * h - to, 4>(signs);
}

// A product of every byte with an 8 x 8 matrix of bits: byte 7 - i of `rows` has the input's bits whose sum is bit i.
TANDEM_INLINE __m512i multiply_bits(__m512i v, uint64_t rows) {
  return _mm512_gf2p8affine_epi64_epi8(v, _mm512_set1_epi64(static_cast<int64_t>(rows)), 0);
}
// Words with four times seven sign bits, and anything above them, to words of signs.
TANDEM_INLINE __m512i signs_of_sevens(__m512i words) {
  return multiply_bits(bits_apart<0, 7>(words), 0x010204081020407f);
}
// The same of seven bits above one bit of a byte.
TANDEM_INLINE __m512i signs_of_high_sevens(__m512i v) {
  return multiply_bits(v, 0x02040810204080fe);
}

// ---- levels ----

struct alignas(64) LevelTable {
  uint8_t level[64];
};
// IQ2: 64 +- level of code and sign j of two: codes are bits 0..3 of the index, signs bits 4 and 5.
constexpr LevelTable iq2_levels(int j) {
  LevelTable table{};
  for (uint32_t i = 0; i < 64; ++i) {
    const uint32_t code = i >> 2 * j & 3;
    const int level = code == 3 ? 0 : iq2_level(code);
    table.level[i] = static_cast<uint8_t>(i >> (4 + j) & 1 ? kBias - level : kBias + level);
  }
  return table;
}
// IQ3_XXS: of code + 8, or 7 - code for a negative one.
constexpr LevelTable iq3_xxs_levels() {
  LevelTable table{};
  for (uint32_t i = 0; i < 64; ++i) {
    table.level[i] =
        static_cast<uint8_t>(i & 8 ? kBias + iq3_xxs_level(i & 7) : kBias - iq3_xxs_level(~i & 7));
  }
  return table;
}
constexpr LevelTable kIq2Levels[2] = {iq2_levels(0), iq2_levels(1)};
constexpr LevelTable kIq3XxsLevels = iq3_xxs_levels();

// vpermb looks at the low six bits.
TANDEM_INLINE __m512i level(const LevelTable& table, __m512i six) {
  return _mm512_permutexvar_epi8(six, _mm512_load_si512(table.level));
}

template <int at, class Sink>
TANDEM_INLINE void put_bytes(Sink& sink, __m512i v) {
  sink.template put<at>(v);
}

// Columns 16 h.. of 32, of IQ2 or IQ1: in byte b of a lane the codes of columns 4b.. .
template <int h>
TANDEM_INLINE __m512i codes_of_half(__m512i low, __m512i high) {
  // Bytes of a lane: the first halves of its four vectors are in `low`, the second ones in `high`.
  return _mm512_permutex2var_epi8(low, lane_bytes(2 * h, 64 + 2 * h, 2 * h + 1, 65 + 2 * h), high);
}

// 32 columns of an IQ2 format from number `at` on; `step` from one half to the next.
template <int at, int step, class Sink>
TANDEM_INLINE void put_iq2(__m512i low, __m512i high, __m512i signs, Sink& sink) {
  unroll<2>([&](auto half) __attribute__((always_inline)) {
    constexpr int h = decltype(half)::value, to = at + h * step;
    const __m512i codes = codes_of_half<h>(low, high);
    const __m512i negative = sign_nibbles<h, 4>(signs);
    const auto join = [](__m512i a, __m512i b) __attribute__((always_inline)) {
      return _mm512_ternarylogic_epi32(bytes(15), a, b, 0xca);  // low nibbles of a, high ones of b
    };
    const __m512i first = join(codes, negative);
    const __m512i second = join(_mm512_srli_epi16(codes, 4), _mm512_srli_epi16(negative, 2));
    put_bytes<to>(sink, level(kIq2Levels[0], first));
    put_bytes<to + 1>(sink, level(kIq2Levels[1], first));
    put_bytes<to + 2>(sink, level(kIq2Levels[0], second));
    put_bytes<to + 3>(sink, level(kIq2Levels[1], second));
  });
}

// Of an IQ1 format: indices whose low bytes are q, and whose higher bits are the low three of `high`.
TANDEM_INLINE Indices indices_of_iq1(__m512i q, __m512i high) {
  return indices(q, _mm512_test_epi8_mask(high, bytes(1)), _mm512_test_epi8_mask(high, bytes(2)), _mm512_test_epi8_mask(high, bytes(4)));
}
// 16 columns of it from number `at` on, in eighths plus 9: 8 code, and 2 of `moved` where the weights are moved up.
template <int at, class Sink>
TANDEM_INLINE void put_iq1(__m512i codes, __m512i moved, Sink& sink) {
  const __m512i eights = bytes(0x18);
  const auto put = [&](auto to, __m512i shifted) __attribute__((always_inline)) {
    put_bytes<decltype(to)::value>(sink, _mm512_ternarylogic_epi32(shifted, eights, moved, 0xea));
  };
  put(Index<at>{}, _mm512_slli_epi16(codes, 3));
  put(Index<at + 1>{}, _mm512_slli_epi16(codes, 1));
  put(Index<at + 2>{}, _mm512_srli_epi16(codes, 1));
  put(Index<at + 3>{}, _mm512_srli_epi16(codes, 3));
}

// Nibbles of 16 columns of an IQ3 format: where the sign is set, code + 8 becomes 7 - code.
struct Nibbles {
  __m512i pair[2];
};
TANDEM_INLINE Nibbles with_signs(__m512i low, __m512i high, __m512i negative) {
  return {{_mm512_xor_si512(low, multiply_bits(negative, 0x0101010102020202)),
           _mm512_xor_si512(high, multiply_bits(negative, 0x0404040408080808))}};
}

// ---- scales ----

// d, the first two bytes of every row's block, times a factor.
TANDEM_INLINE __m512 scaled_d(const StripRows& rows, size_t at, float factor) {
  return _mm512_mul_ps(low_halves(load_words4(rows, at).w[0]), _mm512_set1_ps(factor));
}

template <int at, class Sink>
TANDEM_INLINE void put_scale(Sink& sink, __m512 scale) {
  sink.template put<at>(_mm512_castps_si512(scale));
}

// Byte b of every lane's word, four times.
template <int b>
TANDEM_INLINE __m512i byte_four_times(__m512i words) {
  constexpr int from = b * 0x01010101;
  return _mm512_shuffle_epi8(
      words, _mm512_set4_epi32(from + 0x0c0c0c0c, from + 0x08080808, from + 0x04040404, from));
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
