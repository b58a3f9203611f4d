// Weights of one row, unpacked for linear_rows.h, one struct per dtype: 128 columns are two vectors of unsigned bytes, in the
// order that the struct names (linear_layout.h).
//
// A struct of a type with blocks of 32 gives of the four blocks at `w`
//   scales(w)      floats
//   offsets(w, d)  what the sums of the blocks' activations are multiplied with: mins, or -offset * d
//   codes(w)
// and one of a type with super-blocks of 256
//   header(w)               with `scales`, one for each sub-block of 16 or 32 columns, and what base() needs
//   codes<half>(w)
//   base(header, token, b)  what mins or offsets add in super-block b, without the activations' scale, over any lanes
// or, if the scales of its sub-blocks are integers,
//   header(w)                       with d, and in the second lane what multiplies mins
//   codes<half>(w)
//   scale_words<half>(header)       in 16 bits, for each quarter of a vector: four times the scale of the first vector of a half
//                                   there and four times that of the second; of Order::evens, of the first and the second half
//   offsets(header, token, b)       what an offset of the codes adds to the products, over any lanes
//   add_mins(header, token, b, d, to)  subtracts mins; d: the header's times the activations' scale
//   add_joint_mins(header, factors, to)  if kJointMins: of all tokens at once, four lanes each
// wide: codes reach beyond 127. max_tokens: with more, strips are faster (measured on Zen 5 with two threads); narrow_tokens:
// likewise if narrow_avx512() (on one core of a Zen 4).
#pragma once

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
// The halves at p, p + stride, p + 2 * stride, p + 3 * stride, as floats.
template <size_t stride>
TANDEM_INLINE __m128 four_halves(const std::byte* p) {
  const auto half = [p](size_t i) __attribute__((always_inline)) {
    return static_cast<uint64_t>(word_at<uint16_t>(p + i * stride));
  };
  return _mm_cvtph_ps(
      _mm_cvtsi64_si128(static_cast<int64_t>(half(0) | half(1) << 16 | half(2) << 32 | half(3) << 48)));
}

TANDEM_INLINE __m128i sixteen(const std::byte* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
// 16 bytes at p and at each of the next strides.
template <size_t stride>
TANDEM_INLINE __m512i four_sixteens(const std::byte* p) {
  const __m512i one = _mm512_castsi128_si512(sixteen(p));
  const __m512i two = _mm512_inserti32x4(one, sixteen(p + stride), 1);
  return _mm512_inserti32x4(_mm512_inserti32x4(two, sixteen(p + 2 * stride), 2), sixteen(p + 3 * stride), 3);
}
TANDEM_INLINE Codes nibbles_of(__m512i v) {
  const __m512i mask = bytes(0x0f);
  return {_mm512_and_si512(v, mask), _mm512_and_si512(_mm512_srli_epi16(v, 4), mask)};
}
// Of 128 bytes the low nibbles (half 0) or the high ones: those of the first 16 of every 32 bytes, and those of the second.
template <int half>
TANDEM_INLINE Codes nibbles_of_lanes(const std::byte* p) {
  const __m512i low = _mm512_loadu_si512(p), high = _mm512_loadu_si512(p + 64);
  const auto nibbles = [](__m512i v) __attribute__((always_inline)) {
    return _mm512_and_si512(half ? _mm512_srli_epi16(v, 4) : v, bytes(0x0f));
  };
  return {nibbles(_mm512_shuffle_i64x2(low, high, 0x88)), nibbles(_mm512_shuffle_i64x2(low, high, 0xdd))};
}
// 16-bit words shifted right by a, b, c and d in the four lanes of 16 bytes; to the left if negative.
template <int a, int b, int c, int d>
TANDEM_INLINE __m512i shift_lanes(__m512i v) {
  constexpr bool left = a < 0 || b < 0 || c < 0 || d < 0;
  static_assert(!left || (a <= 0 && b <= 0 && c <= 0 && d <= 0));
  const auto times = [](int n) { return 0x0001000100010001 * static_cast<int64_t>(left ? -n : n); };
  const __m512i counts =
      _mm512_set_epi64(times(d), times(d), times(c), times(c), times(b), times(b), times(a), times(a));
  return left ? _mm512_sllv_epi16(v, counts) : _mm512_srlv_epi16(v, counts);
}
// (v & mask) | low
TANDEM_INLINE __m512i join_bits(__m512i v, __m512i mask, __m512i low) {
  return _mm512_ternarylogic_epi32(v, mask, low, 0xea);
}

// ---- Blocks of 32 ----

template <class Block>
struct SimpleRow {
  static constexpr int max_tokens = 4, narrow_tokens = 3;
  static constexpr int unit = 32;
  static constexpr Order order = Order::halves;
  static constexpr size_t block_bytes = sizeof(Block);
  TANDEM_INLINE static __m128 scales(const std::byte* w) { return four_halves<block_bytes>(w); }
};
// Types whose codes are offset by a constant.
template <class Block, int offset>
struct OffsetRow : SimpleRow<Block> {
  static constexpr bool wide = offset > 64;
  TANDEM_INLINE static __m128 offsets(const std::byte*, __m128 d) {
    return _mm_mul_ps(d, _mm_set1_ps(static_cast<float>(-offset)));
  }
};
// Types with a min behind the scale.
template <class Block>
struct MinRow : SimpleRow<Block> {
  static constexpr bool wide = false;
  TANDEM_INLINE static __m128 offsets(const std::byte* w, __m128) {
    return four_halves<SimpleRow<Block>::block_bytes>(w + 2);
  }
};

// The nibbles from byte `at` of four blocks.
template <class Block, size_t at>
TANDEM_INLINE Codes nibbles_of_four(const std::byte* w) {
  return nibbles_of(four_sixteens<sizeof(Block)>(w + at));
}
// The same, plus 16 where the bits at byte `bits` say so.
template <class Block, size_t at, size_t bits>
TANDEM_INLINE Codes five_bits(const std::byte* w) {
  const auto mask = [w](size_t half) __attribute__((always_inline)) {
    const auto word = [&](size_t i) __attribute__((always_inline)) {
      return uint64_t{word_at<uint16_t>(w + i * sizeof(Block) + bits + 2 * half)} << (16 * i);
    };
    return word(0) | word(1) | word(2) | word(3);
  };
  const Codes four = nibbles_of_four<Block, at>(w);
  return {_mm512_mask_add_epi8(four.first, mask(0), four.first, bytes(16)),
          _mm512_mask_add_epi8(four.second, mask(1), four.second, bytes(16))};
}
template <int offset>
TANDEM_INLINE Codes look_up(const int8_t (&levels)[16], const Codes& nibbles) {
  const __m512i table = level_table<offset>(levels);
  return {_mm512_shuffle_epi8(table, nibbles.first), _mm512_shuffle_epi8(table, nibbles.second)};
}

struct RowQ4_0 : OffsetRow<BlockQ4_0, 8> {
  TANDEM_INLINE static Codes codes(const std::byte* w) { return nibbles_of_four<BlockQ4_0, 2>(w); }
};
struct RowQ4_1 : MinRow<BlockQ4_1> {
  TANDEM_INLINE static Codes codes(const std::byte* w) { return nibbles_of_four<BlockQ4_1, 4>(w); }
};
struct RowQ5_0 : OffsetRow<BlockQ5_0, 16> {
  TANDEM_INLINE static Codes codes(const std::byte* w) { return five_bits<BlockQ5_0, 6, 2>(w); }
};
struct RowQ5_1 : MinRow<BlockQ5_1> {
  TANDEM_INLINE static Codes codes(const std::byte* w) { return five_bits<BlockQ5_1, 8, 4>(w); }
};
struct RowQ8_0 : OffsetRow<BlockQ8_0, 128> {
  static constexpr int max_tokens = 6, narrow_tokens = 1;
  TANDEM_INLINE static Codes codes(const std::byte* w) {
    const __m512i top = bytes(0x80);
    return {_mm512_xor_si512(four_sixteens<block_bytes>(w + 2), top),
            _mm512_xor_si512(four_sixteens<block_bytes>(w + 18), top)};
  }
};
struct RowIQ4_NL : OffsetRow<BlockIQ4_NL, 128> {
  TANDEM_INLINE static Codes codes(const std::byte* w) {
    return look_up<128>(kvalues_iq4nl, nibbles_of_four<BlockIQ4_NL, 2>(w));
  }
};
struct RowMXFP4 : OffsetRow<BlockMXFP4, 12> {
  // As e8m0_to_fp32_half: subnormal for e < 2.
  TANDEM_INLINE static __m128 scales(const std::byte* w) {
    const auto byte = [w](size_t i) __attribute__((always_inline)) {
      return static_cast<int>(w[i * block_bytes]);
    };
    const __m128i e = _mm_setr_epi32(byte(0), byte(1), byte(2), byte(3));
    const __m128i normal = _mm_slli_epi32(_mm_sub_epi32(e, _mm_set1_epi32(1)), 23);
    const __m128i small = _mm_sllv_epi32(_mm_set1_epi32(0x00200000), e);
    return _mm_castsi128_ps(_mm_mask_mov_epi32(normal, _mm_cmplt_epi32_mask(e, _mm_set1_epi32(2)), small));
  }
  TANDEM_INLINE static Codes codes(const std::byte* w) {
    return look_up<12>(kvalues_mxfp4, nibbles_of_four<BlockMXFP4, 1>(w));
  }
};

// ---- Super-blocks of 256 ----

template <class Block, int columns_of_scale, Order o>
struct SuperRow {
  static constexpr int max_tokens = 4, narrow_tokens = 3;
  static constexpr int unit = 256, sub = columns_of_scale;
  static constexpr Order order = o;
  static constexpr size_t block_bytes = sizeof(Block);
};

// Q4_K and Q5_K: d, dmin, eight six-bit scales and mins. The first 32 columns are low nibbles of 32 bytes, the next 32 their high
// ones, and so on.
template <class Block>
struct MinsRow : SuperRow<Block, 32, Order::evens> {
  static constexpr int max_tokens = 5, narrow_tokens = 5;
  static constexpr bool wide = false, kJointMins = true;
  struct Header {
    uint64_t scales, mins;  // eight bytes
    __m128 d;               // d, dmin
  };
  TANDEM_INLINE static Header header(const std::byte* w) {
    constexpr uint64_t sixes = 0x3f3f3f3f, fours = 0x0f0f0f0f, twos = 0x03030303;
    const uint64_t a = word_at<uint32_t>(w + 4), b = word_at<uint32_t>(w + 8), c = word_at<uint32_t>(w + 12);
    const uint64_t scales = (a & sixes) | ((c & fours) | (a >> 6 & twos) << 4) << 32;
    const uint64_t mins = (b & sixes) | ((c >> 4 & fours) | (b >> 6 & twos) << 4) << 32;
    return {scales, mins, _mm_cvtph_ps(_mm_cvtsi32_si128(word_at<int32_t>(w)))};
  }
  template <int>
  TANDEM_INLINE static __m512i scale_words(const Header& h) {
    // Scales 2 * i and 2 * i + 1, each with a byte of zeros behind it, in quarter i.
    constexpr auto four = [](uint64_t i) { return static_cast<int64_t>(0x0001000100010001 * (0x8000 | i)); };
    const __m512i from = _mm512_set_epi64(four(7), four(6), four(5), four(4), four(3), four(2), four(1), four(0));
    return _mm512_shuffle_epi8(_mm512_set1_epi64(static_cast<int64_t>(h.scales)), from);
  }
  TANDEM_INLINE static __m512i offsets(const Header&, const RowToken&, int64_t) {
    return _mm512_setzero_si512();
  }
  TANDEM_INLINE static void add_mins(const Header& h, const RowToken& x, int64_t block, __m128 d,
                                     __m256& to) {
    const __m128i sums = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x.sum32 + 8 * block));
    const __m128i mins = _mm_cvtepu8_epi16(_mm_cvtsi64_si128(static_cast<int64_t>(h.mins)));
    const __m128 products = _mm_cvtepi32_ps(_mm_madd_epi16(mins, sums));
    to = _mm256_zextps128_ps256(_mm_fnmadd_ps(products, _mm_shuffle_ps(d, d, 0x55), _mm256_castps256_ps128(to)));
  }
  TANDEM_INLINE static void add_joint_mins(const Header& h, const MinFactors& x, __m512& to) {
    const __m512i words = _mm512_cvtepu8_epi16(_mm256_set1_epi64x(static_cast<int64_t>(h.mins)));
    const __m512 mins = _mm512_cvtepi32_ps(_mm512_madd_epi16(words, _mm512_load_si512(x.sums)));
    const __m512 dmin = _mm512_broadcastss_ps(_mm_movehdup_ps(h.d));
    to = _mm512_fnmadd_ps(mins, _mm512_mul_ps(dmin, _mm512_load_ps(x.scales)), to);
  }
};

struct RowQ4_K : MinsRow<BlockQ4_K> {
  template <int half>
  TANDEM_INLINE static Codes codes(const std::byte* w) {
    return nibbles_of_lanes<half>(w + 16);
  }
};
struct RowQ5_K : MinsRow<BlockQ5_K> {
  static constexpr int narrow_tokens = 4;
  // Bit s of a byte is of sub-block s. Words turn, for bits go to the left in some lanes and to the right in others.
  template <int half>
  TANDEM_INLINE static __m512i with_fifth(__m512i nibbles, const std::byte* bits) {
    const auto turn = [](int lane) { return 0x0000000100000001 * static_cast<int64_t>((36 - 2 * lane - half) % 32); };
    const __m512i counts =
        _mm512_set_epi64(turn(3), turn(3), turn(2), turn(2), turn(1), turn(1), turn(0), turn(0));
    const __m512i four_times = _mm512_broadcast_i32x4(sixteen(bits));
    return join_bits(_mm512_rolv_epi32(four_times, counts), bytes(0x10), nibbles);
  }
  template <int half>
  TANDEM_INLINE static Codes codes(const std::byte* w) {
    const Codes four = nibbles_of_lanes<half>(w + 48);
    return {with_fifth<half>(four.first, w + 16), with_fifth<half>(four.second, w + 32)};
  }
};

// Of 128 columns the first 64 are low nibbles of 64 bytes, the next 64 the high ones.
struct RowQ6_K : SuperRow<BlockQ6_K, 16, Order::columns> {
  static constexpr int max_tokens = 6, narrow_tokens = 5;
  static constexpr bool wide = false;
  struct Header {
    __m512i scales;   // sixteen of 16 bits
    __m256i offsets;  // -32 times as much
    __m128 d;
  };
  TANDEM_INLINE static Header header(const std::byte* w) {
    const __m256i scales = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w + 192)));
    return {_mm512_castsi256_si512(scales),
            _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_slli_epi16(scales, 5)),
            _mm_cvtph_ps(_mm_cvtsi32_si128(word_at<uint16_t>(w + 208)))};
  }
  template <int half>
  TANDEM_INLINE static __m512i scale_words(const Header& h) {
    // Scales i and 4 + i of the half's eight in quarter i.
    constexpr auto four = [](int64_t i) { return 0x0001000100010001 * (8 * half + i); };
    return _mm512_permutexvar_epi16(
        _mm512_set_epi64(four(7), four(3), four(6), four(2), four(5), four(1), four(4), four(0)), h.scales);
  }
  template <int half>
  TANDEM_INLINE static Codes codes(const std::byte* w) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 128 + 32 * half));
    const __m512i high = _mm512_broadcast_i64x4(bits), mask = bytes(0x30);
    const Codes low = nibbles_of(_mm512_loadu_si512(w + 64 * half));
    return {join_bits(shift_lanes<-4, -4, -2, -2>(high), mask, low.first),
            join_bits(shift_lanes<0, 0, 2, 2>(high), mask, low.second)};
  }
  TANDEM_INLINE static __m512i offsets(const Header& h, const RowToken& x, int64_t block) {
    const __m256i sums = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x.sum16 + 16 * block));
    return _mm512_zextsi256_si512(_mm256_madd_epi16(h.offsets, sums));
  }
  TANDEM_INLINE static void add_mins(const Header&, const RowToken&, int64_t, __m128, __m256&) {}
};

struct RowIQ4_XS : SuperRow<BlockIQ4_XS, 32, Order::halves> {
  static constexpr bool wide = true;
  struct Header {
    __m512 scales;  // eight
  };
  TANDEM_INLINE static Header header(const std::byte* w) {
    const __m256i fours = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    const __m256i low = _mm256_srlv_epi32(_mm256_set1_epi32(word_at<int32_t>(w + 4)), fours);
    const __m256i high =
        _mm256_srlv_epi32(_mm256_set1_epi32(word_at<uint16_t>(w + 2) << 4), _mm256_srli_epi32(fours, 1));
    const __m256i six = _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi32(0x0f)),
                                        _mm256_and_si256(high, _mm256_set1_epi32(0x30)));
    const __m256 scales = _mm256_cvtepi32_ps(_mm256_sub_epi32(six, _mm256_set1_epi32(32)));
    const __m128 d = _mm_cvtph_ps(_mm_cvtsi32_si128(word_at<uint16_t>(w)));
    return {_mm512_castps256_ps512(_mm256_mul_ps(scales, _mm256_broadcastss_ps(d)))};
  }
  template <int half>
  TANDEM_INLINE static Codes codes(const std::byte* w) {
    return look_up<128>(kvalues_iq4nl, nibbles_of(_mm512_loadu_si512(w + 8 + 64 * half)));
  }
  TANDEM_INLINE static __m256 base(const Header& h, const RowToken& x, int64_t block) {
    const __m128i sums = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x.sum32 + 8 * block));
    const __m256 floats = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(sums));
    return _mm256_mul_ps(_mm256_mul_ps(floats, _mm512_castps512_ps256(h.scales)), _mm256_set1_ps(-128.0f));
  }
};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
