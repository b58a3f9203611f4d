// Weights of one row, as linear_row_formats.h has them, of types whose codes are planes of two bits: Q2_K, Q3_K, TQ2_0.
//
// They were unpacked in strips of 16 rows for few tokens, too. On two cores of an Emerald Rapids, busy, 5632 x 2048 from memory, GB/s then
// and now, one token, two, four and six: Q2_K 17.7, 28.2; 11.0, 20.1; 8.0, 10.9; 9.0, 9.1; Q3_K 15.4, 24.2; 9.8, 17.0; 9.5, 12.5; 9.0, 9.5.
#pragma once

#include "cpu/avx512/linear_row_formats.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// Of two super-blocks at w.
template <class BlockType>
struct Planes {
  using Block = BlockType;
  using Columns = RowPlanes;
  static constexpr int unit = 256;
  static constexpr Order order = Order::planes;
  static constexpr size_t block_bytes = sizeof(Block);

  // Sixteen bytes of each.
  TANDEM_INLINE static __m256i both(__m128i a, __m128i b) { return _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1); }
  // In lanes of 16 bytes those of a, a, b and b.
  TANDEM_INLINE static __m512i twice_each(__m256i v) {
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3), _mm512_castsi256_si512(v));
  }
  // Half `index` of four (two of a, two of b), in the lanes of a or b.
  TANDEM_INLINE static __m512 spread(__m512 halves, int index) {
    const int a = index, b = index + 2;
    return _mm512_permutexvar_ps(_mm512_setr_epi32(a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b), halves);
  }
  // Four halves: two at `at` of each.
  TANDEM_INLINE static __m512 halves_at(const std::byte* w, size_t at) {
    const __m128i four = _mm_unpacklo_epi32(_mm_cvtsi32_si128(word_at<int32_t>(w + at)),
                                            _mm_cvtsi32_si128(word_at<int32_t>(w + block_bytes + at)));
    return _mm512_castps128_ps512(_mm_cvtph_ps(four));
  }
  // Bytes `at`.. of both, eight of the first 32 and eight of the next in turn, in two vectors.
  TANDEM_INLINE static void load(const std::byte* w, size_t at, size_t next, __m512i (&to)[2]) {
    const auto both_of = [&](size_t from) __attribute__((always_inline)) {
      const auto of = [&](const std::byte* p) __attribute__((always_inline)) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + from));
      };
      return _mm512_inserti64x4(_mm512_castsi256_si512(of(w)), of(w + block_bytes), 1);
    };
    const __m512i first = both_of(at), second = both_of(next);
    to[0] = _mm512_unpacklo_epi64(first, second);
    to[1] = _mm512_unpackhi_epi64(first, second);
  }
};

// One scale for all columns: code - 1.
struct RowTQ2_0 : Planes<BlockTQ2_0> {
  static constexpr int max_tokens = 8, narrow_tokens = 4;

  template <int T, class Units>
  TANDEM_INLINE static void add(const std::byte* w, const RowPlanes* x, Units units, __m512* sums) {
    __m512i v[2];
    load(w, offsetof(Block, qs), offsetof(Block, qs) + 32, v);
    __m512i products[T];
    for (int t = 0; t < T; ++t)
      products[t] = dot_i16(_mm512_setzero_si512(), _mm512_load_si512(x[t].minus), _mm512_set1_epi16(1));
    unroll<4>([&](auto plane) __attribute__((always_inline)) {
      unroll<2>([&](auto i) __attribute__((always_inline)) {
        const __m512i codes = shift_and_mask<2 * plane.value>(v[i.value], bytes(3));
        for (int t = 0; t < T; ++t)
          products[t] = dot_u8s8<false>(products[t], codes, _mm512_load_si512(x[t].q + 128 * plane.value + 64 * i.value));
      });
    });
    const __m512 d = units.template present<8, 2>(spread(halves_at(w, offsetof(Block, d) - 2), 1));
    for (int t = 0; t < T; ++t) {
      const __m512 scale = _mm512_mul_ps(d, _mm512_load_ps(x[t].scale));
      sums[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products[t]), scale, sums[t]);
    }
  }
};

// Q2_K and Q3_K: a scale of 16 columns, and a third bit. Lanes have eight columns of a sub-block, in two vectors, so that four
// products with scales, as 16-bit integers, are enough. To transpose until a lane has all 16 would save two of them and take as many
// operations for each vector of weights; so would codes times scales as bytes. With more than six tokens strips are faster.
//
// F gives
//   header(w)               see Header
//   third_bits(w)           what the next one needs
//   codes<plane, i>(bits, third)  of vector 2 * plane + i, whose two bits are those
template <class F, class Block, bool mins>
struct ScaledPlanesRow : Planes<Block> {
  static constexpr int max_tokens = 6, narrow_tokens = 4;

  struct Header {
    __m512i scales;    // bytes: in lanes of 16 those of a, a, b and b
    __m512i of_minus;  // words in the order of sub-blocks: mins, or what the sum of activations is multiplied with
    __m512 d, dmin;
  };

  // The scales of plane `plane` for dot_i16(), as words of which every second one is zero: byte `byte` of a word is the scale.
  template <int plane, int byte>
  TANDEM_INLINE static __m512i scales_of(__m512i scales) {
    const auto two = [](int sub) {
      return static_cast<int64_t>((0x8080808080808080ull ^ (0x0000008000000080ull << (8 * byte))) |
                                  (0x0000000100000001ull * static_cast<uint64_t>(sub)) << (8 * byte));
    };
    constexpr int first = 2 * plane;
    return _mm512_shuffle_epi8(scales, _mm512_setr_epi64(two(first), two(8 + first), two(first + 1), two(9 + first), two(first),
                                                         two(8 + first), two(first + 1), two(9 + first)));
  }

  template <int T, class Units>
  TANDEM_INLINE static void add(const std::byte* w, const RowPlanes* x, Units units, __m512* sums) {
    __m512i v[2];
    F::load(w, offsetof(Block, qs), offsetof(Block, qs) + 32, v);
    Header h = F::header(w);
    h.d = units.template present<8, 2>(h.d);
    if constexpr (mins) h.dmin = units.template present<8, 2>(h.dmin);
    const auto third = F::third_bits(w);
    __m512i products[T], of_mins[T];
    for (int t = 0; t < T; ++t) {
      of_mins[t] = dot_i16(_mm512_setzero_si512(), _mm512_load_si512(x[t].minus), h.of_minus);
      products[t] = mins ? _mm512_setzero_si512() : of_mins[t];
    }
    unroll<4>([&](auto p) __attribute__((always_inline)) {
      constexpr int plane = decltype(p)::value;
      const __m512i scales = scales_of<plane, F::scale_byte>(h.scales);
      const auto codes = [&](auto i) __attribute__((always_inline)) {
        return F::template codes<plane, i.value>(shift_and_mask<2 * plane>(v[i.value], bytes(3)), third);
      };
      const __m512i first = codes(Index<0>{}), second = codes(Index<1>{});
      for (int t = 0; t < T; ++t) {
        const auto* q = x[t].q + 128 * plane;
        const __m512i half = dot_u8s8<false>(_mm512_setzero_si512(), first, _mm512_load_si512(q));
        products[t] = dot_i16(products[t], dot_u8s8<false>(half, second, _mm512_load_si512(q + 64)), scales);
      }
    });
    for (int t = 0; t < T; ++t) {
      __m512 total = _mm512_mul_ps(_mm512_cvtepi32_ps(products[t]), h.d);
      if constexpr (mins) total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(of_mins[t]), h.dmin, total);
      sums[t] = _mm512_fmadd_ps(total, _mm512_load_ps(x[t].scale), sums[t]);
    }
  }
};

struct RowQ2_K : ScaledPlanesRow<RowQ2_K, BlockQ2_K, true> {
  static constexpr int scale_byte = 0;
  struct None {};
  TANDEM_INLINE static None third_bits(const std::byte*) { return {}; }
  template <int plane, int i>
  TANDEM_INLINE static __m512i codes(__m512i bits, None) {
    return bits;
  }
  TANDEM_INLINE static Header header(const std::byte* w) {
    const __m256i packed = both(sixteen(w), sixteen(w + block_bytes)), low = _mm256_set1_epi8(15);
    const __m256i min_codes = _mm256_and_si256(_mm256_srli_epi16(packed, 4), low);
    const __m512 halves = halves_at(w, offsetof(Block, d));
    return {twice_each(_mm256_and_si256(packed, low)), _mm512_cvtepu8_epi16(min_codes), spread(halves, 0), spread(halves, 1)};
  }
};

// Weights are d (scale - 32) (code - 4). Scales are multiplied as 256 times as much, so that their bytes are signed.
struct RowQ3_K : ScaledPlanesRow<RowQ3_K, BlockQ3_K, false> {
  static constexpr int scale_byte = 1;
  struct Third {
    __m512i v[2];  // bit `plane` of bytes
  };
  TANDEM_INLINE static Third third_bits(const std::byte* w) {
    Third third;
    load(w, offsetof(Block, hmask), offsetof(Block, hmask), third.v);
    const __m512i halves = _mm512_setr_epi64(0, 4, 0, 4, 0, 4, 0, 4);  // of the second half they are bits 4 to 7
    for (__m512i& v : third.v) v = _mm512_srlv_epi64(v, halves);
    return third;
  }
  template <int plane, int i>
  TANDEM_INLINE static __m512i codes(__m512i bits, const Third& third) {
    return join_bits(shifted<plane - 2>(third.v[i]), bytes(4), bits);
  }
  TANDEM_INLINE static Header header(const std::byte* w) {
    // Twelve bytes: low nibbles of scales 0.. and, high ones, of 8.. in the first eight; two bits more of four at a time in the others.
    static_assert(offsetof(Block, scales) == 96 && offsetof(Block, d) == 108);
    const __m256i packed = both(sixteen(w + 94), sixteen(w + block_bytes + 94));
    const auto pick = [&](int64_t low, int64_t high) __attribute__((always_inline)) {
      return _mm256_shuffle_epi8(packed, _mm256_setr_epi64x(low, high, low, high));
    };
    const __m256i nibbles = _mm256_and_si256(
        _mm256_srlv_epi64(pick(0x0908070605040302, 0x0908070605040302), _mm256_setr_epi64x(0, 4, 0, 4)), _mm256_set1_epi8(15));
    const __m256i tops = _mm256_rolv_epi32(pick(0x0d0c0b0a0d0c0b0a, 0x0d0c0b0a0d0c0b0a),
                                           _mm256_setr_epi32(4, 2, 0, 30, 4, 2, 0, 30));
    const __m256i six = _mm256_ternarylogic_epi32(tops, _mm256_set1_epi8(0x30), nibbles, 0xea);
    const __m256i scales = _mm256_sub_epi8(six, _mm256_set1_epi8(32));
    const __m512 d = _mm512_mul_ps(spread(halves_at(w, offsetof(Block, d) - 2), 1), _mm512_set1_ps(1.0f / 256));
    return {twice_each(scales), _mm512_slli_epi16(_mm512_cvtepi8_epi16(scales), 10), d, d};
  }
};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
