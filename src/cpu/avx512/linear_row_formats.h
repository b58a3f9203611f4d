// Weights of one row, multiplied for linear_rows.h, one struct per dtype. add(w, x, units, sums) adds to each token's sums the
// products of 512 columns of weights with x[0 .. T) (RowColumns or RowSixteens in linear_layout.h; RowPlanes is that of
// linear_row_planes.h).
//
// Weights are transposed so that a vector has four columns of each of 16 blocks or sub-blocks: then a sum of products has a lane for
// every block, and is converted and multiplied by a vector of scales once.
#pragma once

#include <array>
#include <cstring>

#include "cpu/avx512/linear_rows.h"
#include "cpu/avx512/linear_unpack.h"
#include "gguf/blocks.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

template <class Word>
TANDEM_INLINE Word word_at(const std::byte* p) {
  Word word;
  std::memcpy(&word, p, sizeof word);
  return word;
}
// (v & mask) | low
TANDEM_INLINE __m512i join_bits(__m512i v, __m512i mask, __m512i low) {
  return _mm512_ternarylogic_epi32(v, mask, low, 0xea);
}

// How the first n_words words of n blocks (words of 16 bits) come into a vector: a load has those of several blocks, and is placed so
// that they come between those of the loads before.
template <size_t block_bytes, int n_words, int n>
struct HeadLoads {
  static constexpr int kStride = block_bytes / 2;
  static_assert(block_bytes % 2 == 0);

  struct Load {
    int offset;  // in words
    uint32_t mask;
  };
  std::array<Load, 16> loads{};
  int n_loads = 0;
  std::array<int, 16> places{};  // of each block's first word

  constexpr HeadLoads() {
    for (int block = 0; block < n; ++n_loads) {
      const int first = n_words * n_loads;
      Load& load = loads[static_cast<size_t>(n_loads)];
      load.offset = block * kStride - first;
      for (int at = first; at + n_words <= 32 && block < n; at += kStride, ++block) {
        load.mask |= ((1u << n_words) - 1) << at;
        places[static_cast<size_t>(block)] = at;
      }
    }
  }
  constexpr bool fits() const { return n_words * n_loads <= kStride; }
};

// The first n_words words of 16 blocks, in one vector or in two.
template <size_t block_bytes, int n_words>
struct Heads {
  static constexpr int kVectors = n_words > 2 ? 2 : 1, kBlocks = 16 / kVectors;
  static constexpr HeadLoads<block_bytes, n_words, kBlocks> loads{};
  static_assert(loads.fits());
  __m512i v[kVectors];

  TANDEM_INLINE explicit Heads(const std::byte* w) {
    unroll<kVectors>([&](auto half) __attribute__((always_inline)) {
      v[half.value] = _mm512_setzero_si512();
      unroll<loads.n_loads>([&](auto i) __attribute__((always_inline)) {
        constexpr auto load = loads.loads[i.value];
        const std::byte* from = w + half.value * kBlocks * static_cast<int>(block_bytes) + 2 * load.offset;
        v[half.value] = _mm512_mask_loadu_epi16(v[half.value], load.mask, from);
      });
    });
  }

  // Word `word` of the blocks in turn, each `times` times.
  template <int word, int times>
  TANDEM_INLINE __m512i words() const {
    alignas(64) static constexpr std::array<int16_t, 32> places = [] {
      std::array<int16_t, 32> to{};
      for (size_t i = 0; i < 32; ++i) to[i] = static_cast<int16_t>(loads.places[i / times % kBlocks] + word);
      return to;
    }();
    const __m512i from = _mm512_load_si512(places.data());
    const __m512i first = _mm512_permutexvar_epi16(from, v[0]);
    if constexpr (kVectors == 1) return first;
    constexpr uint32_t second = static_cast<uint32_t>(((uint64_t{1} << (8 * times)) - 1) << (8 * times));
    return _mm512_mask_permutexvar_epi16(first, second, from, v[kVectors - 1]);
  }
  template <int word>
  TANDEM_INLINE __m512 floats() const {
    return _mm512_cvtph_ps(_mm512_castsi512_si256(words<word, 1>()));
  }
};

// ---- Blocks of 32 columns ----

// F gives of 16 blocks at w
//   heads(w)           what the next two need
//   factors(w, heads)  scales, and what the sums of the blocks' activations are multiplied with: mins, or -offset times a scale
//   each_vector(w, heads, fn)  calls fn(Index<g>, codes) for each vector g of RowColumns, in any order
// wide: codes reach beyond 127. max_tokens: with more, strips are faster, on Intel; narrow_tokens: likewise if narrow_avx512(), but
// measured with the kernels before these (of blocks of 32 one more than then); one_stream_tokens: likewise on a Zen 5, if that is less.
// Strips over rows there, 4096 x 4096 and 5632 x 2048: seven and eight tokens Q4_K 1.02, 0.96 and 1.26, 1.09 (4096 x 14336 1.40, 1.40),
// Q6_K 1.27, 1.06 and 1.52, 1.13.
struct Factors {
  __m512 scales, of_sums;
};

template <class F, class BlockType, int columns = 32>
struct BlocksRow {
  using Block = BlockType;
  using Columns = RowColumns;
  static constexpr int unit = columns;
  static constexpr Order order = Order::blocks;
  static constexpr size_t block_bytes = sizeof(Block);
  static constexpr int max_tokens = 8, narrow_tokens = 4;

  template <int T, class Units>
  TANDEM_INLINE static void add(const std::byte* w, const RowColumns* x, Units units, __m512* sums) {
    __m512i dot[T];
    for (int t = 0; t < T; ++t) dot[t] = _mm512_setzero_si512();
    const auto heads = F::heads(w);
    F::each_vector(w, heads, [&](auto g, __m512i codes) __attribute__((always_inline)) {
      for (int t = 0; t < T; ++t) dot[t] = dot_u8s8<F::wide>(dot[t], codes, _mm512_load_si512(x[t].q + 64 * g.value));
    });
    const Factors all = F::factors(w, heads);
    constexpr int lanes = unit / 32, n = 16 / lanes;  // lanes of a unit, units
    const Factors f{units.template present<lanes, n>(all.scales), units.template present<lanes, n>(all.of_sums)};
    for (int t = 0; t < T; ++t) {
      const __m512 with_sums = _mm512_fmadd_ps(f.of_sums, _mm512_load_ps(x[t].sum), sums[t]);
      const __m512 scale = _mm512_mul_ps(f.scales, _mm512_load_ps(x[t].scale));
      sums[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[t]), scale, with_sums);
    }
  }
};

// Types whose codes are offset by a constant.
template <int offset>
TANDEM_INLINE Factors with_offset(__m512 scales) {
  return {scales, _mm512_mul_ps(scales, _mm512_set1_ps(static_cast<float>(-offset)))};
}
// What types of nibbles behind a scale have in common, perhaps with other words between them; and those of codes with an offset.
template <class F, class Block, int n_words>
struct HeadsRow : BlocksRow<F, Block> {
  using HeadWords = Heads<sizeof(Block), n_words>;
  TANDEM_INLINE static HeadWords heads(const std::byte* w) { return HeadWords(w); }
};
template <class F, class Block, int n_words, int offset>
struct OffsetRow : HeadsRow<F, Block, n_words> {
  static constexpr bool wide = offset > 64;
  TANDEM_INLINE static Factors factors(const std::byte*, const Heads<sizeof(Block), n_words>& heads) {
    return with_offset<offset>(heads.template floats<0>());
  }
};
// Types with a min behind the scale.
template <class F, class Block, int n_words>
struct MinRow : HeadsRow<F, Block, n_words> {
  static constexpr bool wide = false;
  TANDEM_INLINE static Factors factors(const std::byte*, const Heads<sizeof(Block), n_words>& heads) {
    return {heads.template floats<0>(), heads.template floats<1>()};
  }
};

// Calls fn(Index<j>, words j of 16 bytes of each block) for j of 0 to 3. Block i's are at(i).
template <class At, class Fn>
TANDEM_INLINE void each_word(const At& at, const Fn& fn) {
  __m512i v[4];
  unroll<4>([&](auto i) __attribute__((always_inline)) {
    v[i.value] = four_sixteens(at(i.value), at(i.value + 4), at(i.value + 8), at(i.value + 12));
  });
  transpose4(v);
  unroll<4>([&](auto j) __attribute__((always_inline)) { fn(j, v[j.value]); });
}
// Nibbles from byte `first` of blocks.
template <size_t block_bytes, size_t first, class Fn>
TANDEM_INLINE void each_nibbles(const std::byte* w, const Fn& fn) {
  each_word([w](int i) __attribute__((always_inline)) { return w + static_cast<size_t>(i) * block_bytes + first; },
            [&](auto j, __m512i v) __attribute__((always_inline)) {
              fn(Index<j.value>{}, low_nibbles(v));
              fn(Index<4 + j.value>{}, high_nibbles(v));
            });
}
// The same, plus 16 where the bits say so that begin with word `word` of the heads.
template <size_t block_bytes, size_t first, int word, class HeadWords, class Fn>
TANDEM_INLINE void each_five_bits(const std::byte* w, const HeadWords& heads, const Fn& fn) {
  const __m512i fifth[2] = {heads.template words<word, 2>(), heads.template words<word + 1, 2>()};
  each_nibbles<block_bytes, first>(w, [&](auto g, __m512i nibbles) __attribute__((always_inline)) {
    constexpr int byte = g.value / 2 % 2, shift = g.value % 2 * 4;
    constexpr auto of_lane = [](int i) { return 0x01010101 * (4 * i + byte); };
    const __m512i each = _mm512_shuffle_epi8(
        fifth[g.value / 4], _mm512_broadcast_i32x4(_mm_setr_epi32(of_lane(0), of_lane(1), of_lane(2), of_lane(3))));
    const __mmask64 set = _mm512_test_epi8_mask(each, _mm512_set1_epi32(static_cast<int>(0x08040201u << shift)));
    fn(g, _mm512_mask_add_epi8(nibbles, set, nibbles, bytes(16)));
  });
}
template <int offset, class Fn>
TANDEM_INLINE auto looked_up(const int8_t (&levels)[16], const Fn& fn) {
  const __m512i table = level_table<offset>(levels);
  return [table, &fn](auto g, __m512i nibbles) __attribute__((always_inline)) { fn(g, _mm512_shuffle_epi8(table, nibbles)); };
}

struct RowQ4_0 : OffsetRow<RowQ4_0, BlockQ4_0, 1, 8> {
  template <class Fn>
  TANDEM_INLINE static void each_vector(const std::byte* w, const HeadWords&, const Fn& fn) {
    each_nibbles<block_bytes, 2>(w, fn);
  }
};
struct RowQ4_1 : MinRow<RowQ4_1, BlockQ4_1, 2> {
  template <class Fn>
  TANDEM_INLINE static void each_vector(const std::byte* w, const HeadWords&, const Fn& fn) {
    each_nibbles<block_bytes, 4>(w, fn);
  }
};
struct RowQ5_0 : OffsetRow<RowQ5_0, BlockQ5_0, 3, 16> {
  static constexpr int max_tokens = 6;
  template <class Fn>
  TANDEM_INLINE static void each_vector(const std::byte* w, const HeadWords& heads, const Fn& fn) {
    each_five_bits<block_bytes, 6, 1>(w, heads, fn);
  }
};
struct RowQ5_1 : MinRow<RowQ5_1, BlockQ5_1, 4> {
  static constexpr int max_tokens = 5;
  template <class Fn>
  TANDEM_INLINE static void each_vector(const std::byte* w, const HeadWords& heads, const Fn& fn) {
    each_five_bits<block_bytes, 8, 2>(w, heads, fn);
  }
};
struct RowQ8_0 : OffsetRow<RowQ8_0, BlockQ8_0, 1, 128> {
  static constexpr int narrow_tokens = 2;
  template <class Fn>
  TANDEM_INLINE static void each_vector(const std::byte* w, const HeadWords&, const Fn& fn) {
    unroll<2>([&](auto half) __attribute__((always_inline)) {
      each_word([&](int i) __attribute__((always_inline)) { return w + static_cast<size_t>(i) * block_bytes + 2 + 16 * half.value; },
                [&](auto j, __m512i v) __attribute__((always_inline)) {
                  fn(Index<4 * half.value + j.value>{}, _mm512_xor_si512(v, bytes(0x80)));
                });
    });
  }
};
struct RowIQ4_NL : OffsetRow<RowIQ4_NL, BlockIQ4_NL, 1, 128> {
  template <class Fn>
  TANDEM_INLINE static void each_vector(const std::byte* w, const HeadWords&, const Fn& fn) {
    each_nibbles<block_bytes, 2>(w, looked_up<128>(kvalues_iq4nl, fn));
  }
};
struct NoHeads {};
struct RowMXFP4 : BlocksRow<RowMXFP4, BlockMXFP4> {
  static constexpr bool wide = false;
  TANDEM_INLINE static NoHeads heads(const std::byte*) { return {}; }
  // As e8m0_to_fp32_half: subnormal for e < 2.
  TANDEM_INLINE static Factors factors(const std::byte* w, NoHeads) {
    // Byte m + i of lane m of 16 bytes is of block 4i + m: load i has those of four blocks.
    __m512i v = _mm512_setzero_si512();
    unroll<4>([&](auto i) __attribute__((always_inline)) {
      constexpr uint64_t mask = (1 | uint64_t{1} << 17 | uint64_t{1} << 34 | uint64_t{1} << 51) << i.value;
      v = _mm512_mask_loadu_epi8(v, mask, w + 4 * i.value * block_bytes - i.value);
    });
    const __m512i in_lanes = _mm512_shuffle_epi8(v, [] {
      alignas(64) static constexpr std::array<uint8_t, 64> from = [] {
        std::array<uint8_t, 64> to{};
        for (uint8_t b = 0; b < 64; ++b) to[b] = b % 4 == 0 ? static_cast<uint8_t>(b / 16 + b % 16 / 4) : 0x80;
        return to;
      }();
      return _mm512_load_si512(from.data());
    }());
    const __m512i e = _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), in_lanes);
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    return with_offset<12>(_mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2)), small)));
  }
  template <class Fn>
  TANDEM_INLINE static void each_vector(const std::byte* w, NoHeads, const Fn& fn) {
    each_nibbles<block_bytes, 1>(w, looked_up<12>(kvalues_mxfp4, fn));
  }
};

// Two super-blocks of eight blocks, a lane each.
struct RowIQ4_XS : BlocksRow<RowIQ4_XS, BlockIQ4_XS, 256> {
  static constexpr bool wide = true;
  TANDEM_INLINE static NoHeads heads(const std::byte*) { return {}; }
  TANDEM_INLINE static Factors factors(const std::byte* w, NoHeads) {
    const auto both = [w](auto word_of) __attribute__((always_inline)) {  // the first one's in the first eight lanes
      return _mm512_mask_set1_epi32(_mm512_set1_epi32(word_of(w)), 0xff00, word_of(w + block_bytes));
    };
    const __m512i fours = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    const __m512i low = _mm512_srlv_epi32(both([](const std::byte* p) { return word_at<int32_t>(p + 4); }), fours);
    const __m512i high = _mm512_srlv_epi32(both([](const std::byte* p) { return word_at<uint16_t>(p + 2) << 4; }),
                                           _mm512_srli_epi32(fours, 1));
    const __m512i six = join_bits(high, _mm512_set1_epi32(0x30), _mm512_and_si512(low, _mm512_set1_epi32(0x0f)));
    const __m512 scales = _mm512_cvtepi32_ps(_mm512_sub_epi32(six, _mm512_set1_epi32(32)));
    const __m128i halves = _mm_cvtsi32_si128(word_at<uint16_t>(w) | word_at<uint16_t>(w + block_bytes) << 16);
    const __m512 d = _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
                                           _mm512_castps128_ps512(_mm_cvtph_ps(halves)));
    return with_offset<128>(_mm512_mul_ps(scales, d));
  }
  template <class Fn>
  TANDEM_INLINE static void each_vector(const std::byte* w, NoHeads, const Fn& fn) {
    const auto look_up = looked_up<128>(kvalues_iq4nl, fn);
    each_word([w](int i) __attribute__((always_inline)) { return w + i / 8 * static_cast<int>(block_bytes) + 8 + 16 * (i % 8); },
              [&](auto j, __m512i v) __attribute__((always_inline)) {
                look_up(Index<j.value>{}, low_nibbles(v));
                look_up(Index<4 + j.value>{}, high_nibbles(v));
              });
  }
};

// ---- Super-blocks of 256 with integer scales ----

// Q4_K and Q5_K: d, dmin, eight six-bit scales and mins. The first 32 columns are low nibbles of 32 bytes, the next 32 their high
// ones, and so on. Sums of products are multiplied by scales as 16-bit integers.
template <class F, class BlockType, int most>
struct MinsRow {
  using Block = BlockType;
  using Columns = RowColumns;
  static constexpr int unit = 256;
  static constexpr Order order = Order::sub_blocks;
  static constexpr size_t block_bytes = sizeof(Block);
  static constexpr int max_tokens = 8, narrow_tokens = 5, one_stream_tokens = 6;
  static constexpr int kFitting = 32767 / (4 * most * 127) >= 4 ? 4 : 2;  // products of vectors whose sum fits 16 bits
  static_assert(kFitting * 4 * most * 127 <= 32767);

  struct Header {
    __m512i even, odd;  // scales, as words with zeros above
    __m512 d;
    __m512 mins;  // times dmin, in the order of sub-blocks
  };
  TANDEM_INLINE static Header header(const std::byte* w) {
    const __m256i heads = _mm256_inserti128_si256(_mm256_castsi128_si256(sixteen(w)), sixteen(w + block_bytes), 1);
    // d and dmin, a, b, c: the scales are six bits of a, and four of c with two of a; the mins likewise of b and c's high nibbles.
    const __m256i acbc = _mm256_srlv_epi32(_mm256_shuffle_epi32(heads, 0xed), _mm256_setr_epi32(0, 0, 0, 4, 0, 0, 0, 4));
    const __m256i aabb = _mm256_srli_epi32(_mm256_shuffle_epi32(heads, 0xa5), 2);
    const __m256i low = _mm256_and_si256(acbc, _mm256_set1_epi64x(0x0f0f0f0f3f3f3f3f));
    const __m256i sixes = _mm256_ternarylogic_epi32(aabb, _mm256_set1_epi64x(0x3030303000000000), low, 0xea);
    const __m512i scales = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 0, 2, 0, 2, 0, 2), _mm512_castsi256_si512(sixes));
    const auto words = [&](int odd) __attribute__((always_inline)) {
      const auto two = [&](int p) __attribute__((always_inline)) {
        return static_cast<int64_t>(0x8080800880808000 + 0x0000000100000001 * static_cast<uint64_t>(2 * p + odd));
      };
      return _mm512_shuffle_epi8(scales, _mm512_setr_epi64(two(0), two(0), two(1), two(1), two(2), two(2), two(3), two(3)));
    };
    const __m128i mins = _mm256_castsi256_si128(_mm256_permute4x64_epi64(sixes, 0x0d));
    const __m128i halves = _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(heads, _mm256_setr_epi32(0, 4, 0, 0, 0, 0, 0, 0)));
    const __m512 d_dmin = _mm512_castps128_ps512(_mm_cvtph_ps(halves));
    const __m512 d = _mm512_permutexvar_ps(_mm512_set1_epi64(int64_t{2} << 32), d_dmin);
    const __m512 dmin = _mm512_permutexvar_ps(_mm512_setr_epi32(1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3), d_dmin);
    return {words(0), words(1), d, _mm512_mul_ps(dmin, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(mins)))};
  }

  template <int T, class Units>
  TANDEM_INLINE static void add(const std::byte* w, const RowColumns* x, Units units, __m512* sums) {
    constexpr size_t at = offsetof(Block, qs);
    __m512i v[4];
    unroll<2>([&](auto half) __attribute__((always_inline)) {
      const auto load = [&](size_t block) __attribute__((always_inline)) {
        const std::byte* from = w + block * block_bytes + at;
        return _mm512_shuffle_i64x2(_mm512_loadu_si512(from), _mm512_loadu_si512(from + 64), half.value == 0 ? 0x88 : 0xdd);
      };
      v[2 * half.value] = load(0), v[2 * half.value + 1] = load(1);
      interleave_words(v[2 * half.value], v[2 * half.value + 1]);
    });
    Header h = header(w);
    h.d = units.template present<1, 2>(h.d);
    h.mins = units.template present<8, 2>(h.mins);
    const auto fifth = F::fifth_bits(w);
    __m512i products[T], even[T], odd[T];
    for (int t = 0; t < T; ++t) products[t] = _mm512_setzero_si512();
    unroll<4>([&](auto i) __attribute__((always_inline)) {
      constexpr int index = decltype(i)::value;
      const __m512i low = F::template five_bits<2 * index>(low_nibbles(v[index]), fifth);
      const __m512i high = F::template five_bits<2 * index + 1>(high_nibbles(v[index]), fifth);
      for (int t = 0; t < T; ++t) {
        const auto dot = [&](__m512i sum, __m512i codes, int g) __attribute__((always_inline)) {
          return dot_u8s8<false>(index % kFitting == 0 ? _mm512_setzero_si512() : sum, codes, _mm512_load_si512(x[t].q + 64 * g));
        };
        even[t] = dot(even[t], low, 2 * index);
        odd[t] = dot(odd[t], high, 2 * index + 1);
        if constexpr (index % kFitting == kFitting - 1)
          products[t] = dot_i16(dot_i16(products[t], even[t], h.even), odd[t], h.odd);
      }
    });
    for (int t = 0; t < T; ++t) {
      const __m512 with_mins = _mm512_fnmadd_ps(h.mins, _mm512_load_ps(x[t].sum), sums[t]);
      const __m512 scale = _mm512_mul_ps(h.d, _mm512_load_ps(x[t].scale));
      sums[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products[t]), scale, with_mins);
    }
  }
};

struct RowQ4_K : MinsRow<RowQ4_K, BlockQ4_K, 15> {
  struct None {};
  TANDEM_INLINE static None fifth_bits(const std::byte*) { return {}; }
  template <int g>
  TANDEM_INLINE static __m512i five_bits(__m512i nibbles, None) {
    return nibbles;
  }
};
struct RowQ5_K : MinsRow<RowQ5_K, BlockQ5_K, 31> {
  static constexpr int max_tokens = 5, narrow_tokens = 4;
  // Of each super-block 32 bytes, whose bits s are of sub-block s.
  TANDEM_INLINE static __m512i fifth_bits(const std::byte* w) {
    const auto bits = [w](size_t block) __attribute__((always_inline)) {
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + block * block_bytes + offsetof(Block, qh)));
    };
    return _mm512_inserti64x4(_mm512_castsi256_si512(bits(0)), bits(1), 1);
  }
  template <int g>
  TANDEM_INLINE static __m512i five_bits(__m512i nibbles, __m512i bits) {
    constexpr int first = g / 2 * 2;
    const __m512i each = _mm512_permutexvar_epi32(_mm512_broadcast_i32x4(_mm_setr_epi32(first, 8 + first, first + 1, 9 + first)), bits);
    // Words turn, for bits go to the left in some lanes and to the right in others.
    const auto turn = [](int lane) { return 0x0000000100000001 * static_cast<int64_t>((36 - 2 * lane - g % 2) % 32); };
    const __m512i counts = _mm512_setr_epi64(turn(0), turn(0), turn(1), turn(1), turn(2), turn(2), turn(3), turn(3));
    return join_bits(_mm512_rolv_epi32(each, counts), bytes(0x10), nibbles);
  }
};

// Of 128 columns the first 64 are low nibbles of 64 bytes, the next 64 the high ones.
struct RowQ6_K {
  using Columns = RowSixteens;
  static constexpr int unit = 256;
  static constexpr Order order = Order::sixteens;
  static constexpr size_t block_bytes = sizeof(BlockQ6_K);
  static constexpr int max_tokens = 8, narrow_tokens = 5, one_stream_tokens = 6;

  template <int T, class Units>
  TANDEM_INLINE static void add(const std::byte* w, const RowSixteens* x, Units units, __m512* sums) {
    const std::byte *a = w, *b = w + block_bytes;
    __m512i v[4] = {_mm512_loadu_si512(a), _mm512_loadu_si512(a + 64), _mm512_loadu_si512(b), _mm512_loadu_si512(b + 64)};
    transpose4(v);
    const __m512i bits_a = _mm512_loadu_si512(a + 128), bits_b = _mm512_loadu_si512(b + 128);
    __m512i even[T], odd[T];
    for (int t = 0; t < T; ++t) {
      even[t] = _mm512_load_si512(x[t].start);
      odd[t] = _mm512_load_si512(x[t].start + 16);
    }
    unroll<4>([&](auto j) __attribute__((always_inline)) {
      constexpr int J = decltype(j)::value;
      // Two bits of each: of lanes i the bytes 16 * (i % 2) + 4j.., of which lanes 0 and 1 have the low ones.
      const __m512i from = _mm512_setr_epi32(J, 8 + J, 16 + J, 24 + J, 4 + J, 12 + J, 20 + J, 28 + J,  //
                                             J, 8 + J, 16 + J, 24 + J, 4 + J, 12 + J, 20 + J, 28 + J);
      const __m512i bits = _mm512_permutex2var_epi32(bits_a, from, bits_b);
      const auto counts = [](int64_t first, int64_t last) {
        const int64_t f = first * 0x0001000100010001, l = last * 0x0001000100010001;
        return _mm512_setr_epi64(f, f, f, f, l, l, l, l);
      };
      const __m512i low = join_bits(_mm512_sllv_epi16(bits, counts(4, 2)), bytes(0x30), low_nibbles(v[J]));
      const __m512i high = join_bits(_mm512_srlv_epi16(bits, counts(0, 2)), bytes(0x30), high_nibbles(v[J]));
      for (int t = 0; t < T; ++t) {
        even[t] = dot_u8s8<false>(even[t], low, _mm512_load_si512(x[t].q + 128 * J));
        odd[t] = dot_u8s8<false>(odd[t], high, _mm512_load_si512(x[t].q + 128 * J + 64));
      }
    });
    const auto pairs = [](const std::byte* block) __attribute__((always_inline)) {  // scales i and 8 + i
      return _mm_shuffle_epi8(sixteen(block + 192), _mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
    };
    const __m128i pairs_a = pairs(a), pairs_b = pairs(b);
    const __m128i halves = _mm_cvtsi32_si128(word_at<uint16_t>(a + 208) | word_at<uint16_t>(b + 208) << 16);
    const __m512 d = units.template present<2, 2>(
        _mm512_permutexvar_ps(_mm512_broadcast_i32x4(_mm_setr_epi32(0, 0, 1, 1)), _mm512_castps128_ps512(_mm_cvtph_ps(halves))));
    const auto scales = [&](__m128i four) __attribute__((always_inline)) {
      return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(four)), d);
    };
    const __m512 of_even = scales(_mm_unpacklo_epi16(pairs_a, pairs_b)), of_odd = scales(_mm_unpackhi_epi16(pairs_a, pairs_b));
    for (int t = 0; t < T; ++t) {
      const __m512 part = _mm512_fmadd_ps(_mm512_cvtepi32_ps(odd[t]), of_odd, _mm512_mul_ps(_mm512_cvtepi32_ps(even[t]), of_even));
      sums[t] = _mm512_fmadd_ps(part, _mm512_load_ps(x[t].scale), sums[t]);
    }
  }
};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
