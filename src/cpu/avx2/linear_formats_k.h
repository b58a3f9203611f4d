// Super-blocks of 256 as vectors: the integers of 32 columns, and the integer scales of all sub-blocks.
//
// A format's weights are d * scale * (u - centre) + offset_factor * offset, with u in 0..127 and scale and
// offset integers of a sub-block, or d * scale * s with s signed. Only formats with minima have an offset.
// prepare() computes for a whole super-block what its vectors need.
#pragma once

#include <cstddef>

#include "cpu/avx2/linear_formats_32.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

struct SubScales {
  __m128i scales;   // int8 per sub-block, 8 or 16 of them
  __m128i offsets;  // the same for the minima
  float d;
  float offset_factor;  // -dmin
};

TANDEM_INLINE float half_to_float(fp16_t h) {
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

// Most: the largest |u - centre|, for the products that fit an int16 sum.
template <class BlockType, int SubColumns, int Most, int Centre, bool HasMin>
struct Super {
  using Block = BlockType;
  static constexpr bool is_signed = false;
  static constexpr int sub = SubColumns;
  static constexpr int most = Most;
  static constexpr int centre = Centre;
  static constexpr bool has_min = HasMin;
  struct Prepared {};
  TANDEM_INLINE static Prepared prepare(const Block&) { return {}; }
};

// Signed integers as maddubs wants them: s = sign_epi8(magnitude, sign).
struct SignedVector {
  __m256i magnitude, sign;
};

// 2 bits of 32 columns: bits of the plane I % 4, from 0 to 3.
template <int I>
TANDEM_INLINE __m256i two_bits(const uint8_t* qs) {
  return _mm256_and_si256(_mm256_srli_epi16(load256(qs + 32 * (I / 4)), 2 * (I % 4)), _mm256_set1_epi8(3));
}
// 4 bits of 32 columns, chunks of 64 columns to 32 bytes.
template <int I>
TANDEM_INLINE __m256i four_bits(const uint8_t* qs) {
  return _mm256_and_si256(_mm256_srli_epi16(load256(qs + 32 * (I / 2)), 4 * (I % 2)), _mm256_set1_epi8(15));
}
// Bits From.. of every byte moved to bits To.., the others masked off.
template <int From, int To>
TANDEM_INLINE __m256i move_bits(__m256i v, int mask) {
  if constexpr (From > To) v = _mm256_srli_epi16(v, From - To);
  if constexpr (From < To) v = _mm256_slli_epi16(v, To - From);
  return _mm256_and_si256(v, _mm256_set1_epi8(static_cast<char>(mask)));
}

struct Q2_K : Super<BlockQ2_K, 16, 3, 0, true> {
  template <int I>
  TANDEM_INLINE static __m256i quants(const Block& b) {
    return two_bits<I>(b.qs);
  }
  TANDEM_INLINE static SubScales scales(const Block& b) {
    const __m128i packed = load128(b.scales), low = _mm_set1_epi8(15);
    return {_mm_and_si128(packed, low), _mm_and_si128(_mm_srli_epi16(packed, 4), low), half_to_float(b.d),
            -half_to_float(b.dmin)};
  }
};

struct Q3_K : Super<BlockQ3_K, 16, 4, 4, false> {
  template <int I>
  TANDEM_INLINE static __m256i quants(const Block& b) {
    return _mm256_or_si256(two_bits<I>(b.qs), move_bits<I, 2>(load256(b.hmask), 4));
  }
  TANDEM_INLINE static SubScales scales(const Block& b) {
    const uint32_t s0 = load_u32(b.scales), s1 = load_u32(b.scales + 4), high = load_u32(b.scales + 8);
    constexpr uint32_t kLow = 0x0f0f0f0f, kHigh = 0x30303030;
    const uint32_t a = (s0 & kLow) | (high << 4 & kHigh), c = (s1 & kLow) | (high << 2 & kHigh);
    const uint32_t e = (s0 >> 4 & kLow) | (high & kHigh), g = (s1 >> 4 & kLow) | (high >> 2 & kHigh);
    const __m128i biased =
        _mm_setr_epi32(static_cast<int>(a), static_cast<int>(c), static_cast<int>(e), static_cast<int>(g));
    return {_mm_sub_epi8(biased, _mm_set1_epi8(32)), _mm_setzero_si128(), half_to_float(b.d), 0};
  }
};

TANDEM_INLINE SubScales scales_of_k4(const uint8_t* packed, fp16_t d, fp16_t dmin) {
  const uint32_t p0 = load_u32(packed), p1 = load_u32(packed + 4), p2 = load_u32(packed + 8);
  constexpr uint32_t kSix = 0x3f3f3f3f, kLow = 0x0f0f0f0f, kHigh = 0x30303030;
  const uint64_t scales = (p0 & kSix) | static_cast<uint64_t>((p2 & kLow) | (p0 >> 2 & kHigh)) << 32;
  const uint64_t mins = (p1 & kSix) | static_cast<uint64_t>((p2 >> 4 & kLow) | (p1 >> 2 & kHigh)) << 32;
  return {_mm_cvtsi64_si128(static_cast<long long>(scales)), _mm_cvtsi64_si128(static_cast<long long>(mins)),
          half_to_float(d), -half_to_float(dmin)};
}

// What four super-blocks of one of these formats say of their scales, unpacked for all four together.
struct FourHeads {
  uint8_t scales[4][8], mins[4][8];
  float factors[4][2];  // d and -dmin
};

template <class Block>
TANDEM_INLINE void heads_of_k4(const Block* const (&blocks)[4], FourHeads& to) {
  static_assert(offsetof(Block, dmin) == 2 && offsetof(Block, scales) == 4);
  const __m128i head[4] = {load128(blocks[0]), load128(blocks[1]), load128(blocks[2]), load128(blocks[3])};
  const __m128i d01 = _mm_unpacklo_epi32(head[0], head[1]), d23 = _mm_unpacklo_epi32(head[2], head[3]);
  const __m128i p01 = _mm_unpackhi_epi32(head[0], head[1]), p23 = _mm_unpackhi_epi32(head[2], head[3]);
  const __m128i d = _mm_unpacklo_epi64(d01, d23), p0 = _mm_unpackhi_epi64(d01, d23);
  const __m128i p1 = _mm_unpacklo_epi64(p01, p23), p2 = _mm_unpackhi_epi64(p01, p23);
  const __m128i six = _mm_set1_epi8(0x3f), low = _mm_set1_epi8(0x0f), high = _mm_set1_epi8(0x30);
  const auto store = [](uint8_t(&bytes)[4][8], __m128i low_four, __m128i high_four) __attribute__((always_inline)) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes[0]), _mm_unpacklo_epi32(low_four, high_four));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes[2]), _mm_unpackhi_epi32(low_four, high_four));
  };
  store(to.scales, _mm_and_si128(p0, six),
        _mm_or_si128(_mm_and_si128(p2, low), _mm_and_si128(_mm_srli_epi32(p0, 2), high)));
  store(to.mins, _mm_and_si128(p1, six),
        _mm_or_si128(_mm_and_si128(_mm_srli_epi32(p2, 4), low), _mm_and_si128(_mm_srli_epi32(p1, 2), high)));
  const __m256 signs = _mm256_setr_ps(0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f);
  _mm256_storeu_ps(to.factors[0], _mm256_xor_ps(_mm256_cvtph_ps(d), signs));
}

struct Q4_K : Super<BlockQ4_K, 32, 15, 0, true> {
  template <int I>
  TANDEM_INLINE static __m256i quants(const Block& b) {
    return four_bits<I>(b.qs);
  }
  template <int J>
  TANDEM_INLINE static void add_high_bits(const Block&, __m256i (&)[2]) {}
  TANDEM_INLINE static SubScales scales(const Block& b) { return scales_of_k4(b.scales, b.d, b.dmin); }
};

struct Q5_K : Super<BlockQ5_K, 32, 31, 0, true> {
  template <int I>
  TANDEM_INLINE static __m256i quants(const Block& b) {
    return _mm256_or_si256(four_bits<I>(b.qs), move_bits<I, 4>(load256(b.qh), 16));
  }
  // To columns 4J.. (and 16 + 4J.. in the upper half) of sub-blocks 2p + i, in lanes p of two[i].
  template <int J>
  TANDEM_INLINE static void add_high_bits(const Block& b, __m256i (&two)[2]) {
    const __m256i columns = _mm256_shuffle_epi32(load256(b.qh), 0x55 * J);
    const __m256i bits = _mm256_srlv_epi32(columns, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
    two[0] = _mm256_or_si256(two[0], move_bits<0, 4>(bits, 16));
    two[1] = _mm256_or_si256(two[1], move_bits<1, 4>(bits, 16));
  }
  TANDEM_INLINE static SubScales scales(const Block& b) { return scales_of_k4(b.scales, b.d, b.dmin); }
};

struct Q6_K : Super<BlockQ6_K, 16, 32, 32, false> {
  // Of half h: columns 0..63 are the low nibbles of its 64 bytes of ql, 64..127 the high ones; bits 2p.. of
  // its 32 bytes of qh belong to columns 32p...
  template <int I>
  TANDEM_INLINE static __m256i quants(const Block& b) {
    constexpr int h = I / 4, p = I % 4;
    const __m256i low = move_bits<4 * (p / 2), 0>(load256(b.ql + 64 * h + 32 * (p % 2)), 15);
    return _mm256_or_si256(low, move_bits<2 * p, 4>(load256(b.qh + 32 * h), 48));
  }
  TANDEM_INLINE static SubScales scales(const Block& b) {
    return {load128(b.scales), _mm_setzero_si128(), half_to_float(b.d), 0};
  }
};

// Of types with one scale for all columns.
TANDEM_INLINE SubScales one_scale(fp16_t d) {
  return {_mm_set1_epi8(1), _mm_setzero_si128(), half_to_float(d), 0};
}

struct TQ2_0 : Super<BlockTQ2_0, 32, 2, 1, false> {
  template <int I>
  TANDEM_INLINE static __m256i quants(const Block& b) {
    return two_bits<I>(b.qs);
  }
  TANDEM_INLINE static SubScales scales(const Block& b) { return one_scale(b.d); }
};

struct TQ1_0 : Super<BlockTQ1_0, 32, 1, 1, false> {
  // Digit n of bytes: of the byte times 3^n, how many thirds of 256.
  template <int n>
  TANDEM_INLINE static __m256i digits(__m256i v) {
    for (int i = 0; i < n; ++i) v = _mm256_add_epi8(v, _mm256_add_epi8(v, v));
    const auto at_least = [&](int least) __attribute__((always_inline)) {
      const __m256i bytes = _mm256_set1_epi8(static_cast<char>(least));
      return _mm256_cmpeq_epi8(_mm256_max_epu8(v, bytes), v);
    };
    return _mm256_sub_epi8(_mm256_setzero_si256(), _mm256_add_epi8(at_least(86), at_least(171)));
  }
  template <int I>
  TANDEM_INLINE static __m256i quants(const Block& b) {
    if constexpr (I < 5) {
      return digits<I>(load256(b.qs));
    } else {
      // Columns 160 to 239 are five digits of 16 bytes, the last 16 four of 4 bytes.
      const __m128i sixteen = load128(b.qs + 32), three_times = _mm_add_epi8(sixteen, _mm_add_epi8(sixteen, sixteen));
      if constexpr (I < 7) return digits<2 * (I - 5)>(_mm256_set_m128i(three_times, sixteen));
      const __m256i four = broadcast_u32(b.qh);
      const __m256i powers = _mm256_setr_epi32(0, 0, 0, 0, 1, 3, 9, 27);
      // Bytes times 1, 3, 9 and 27: even ones and odd ones as words.
      const __m256i factors = _mm256_or_si256(powers, _mm256_slli_epi32(powers, 16));
      const __m256i even = _mm256_and_si256(_mm256_mullo_epi16(four, factors), _mm256_set1_epi16(0xff));
      const __m256i odd = _mm256_slli_epi16(_mm256_mullo_epi16(_mm256_srli_epi16(four, 8), factors), 8);
      const __m256i last = digits<4>(_mm256_castsi128_si256(sixteen));
      return _mm256_blend_epi32(last, digits<0>(_mm256_or_si256(even, odd)), 0xf0);
    }
  }
  TANDEM_INLINE static SubScales scales(const Block& b) { return one_scale(b.d); }
};

struct IQ4_XS : Super<BlockIQ4_XS, 32, 128, 0, false> {
  static constexpr bool is_signed = true;
  template <int I>
  TANDEM_INLINE static SignedVector quants(const Block& b, const Prepared&) {
    const __m256i s = lookup(nibbles(b.qs + 16 * I), kvalues_iq4nl);
    return {_mm256_abs_epi8(s), s};
  }
  TANDEM_INLINE static SubScales scales(const Block& b) {
    const __m128i packed = _mm_cvtsi32_si128(static_cast<int>(load_u32(b.scales_l)));
    const __m128i low =
        _mm_and_si128(_mm_unpacklo_epi8(packed, _mm_srli_epi16(packed, 4)), _mm_set1_epi8(15));
    // Word s: bits 2s and 2s+1 to the top, then to bits 4 and 5.
    const __m128i at_top =
        _mm_mullo_epi16(_mm_set1_epi16(static_cast<short>(b.scales_h)),
                        _mm_setr_epi16(1 << 14, 1 << 12, 1 << 10, 1 << 8, 1 << 6, 1 << 4, 1 << 2, 1));
    const __m128i words = _mm_slli_epi16(_mm_srli_epi16(at_top, 14), 4);
    const __m128i biased = _mm_or_si128(low, _mm_packus_epi16(words, words));
    return {_mm_sub_epi8(biased, _mm_set1_epi8(32)), _mm_setzero_si128(), half_to_float(b.d), 0};
  }
};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
