// Blocks of 32 as vectors: the integers of a block in column order, and the scales of eight blocks at a time.
//
// A format's weights are scale * u + offset with u in 0..127, or scale * s with s signed. Panel kernels work
// on u - centre, which fits twice the number of products in an int16 sum.
#pragma once

#include "cpu/avx2/linear_simd.h"
#include "gguf/blocks.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// 16 bytes to their 32 nibbles, the low ones first.
TANDEM_INLINE __m256i nibbles(const uint8_t* qs) {
  const __m256i both = _mm256_broadcastsi128_si256(load128(qs));
  const __m256i shifted = _mm256_srlv_epi64(both, _mm256_setr_epi64x(0, 0, 4, 4));
  return _mm256_and_si256(shifted, _mm256_set1_epi8(15));
}

// 32 bits to bytes of 16 or 0.
TANDEM_INLINE __m256i fifth_bits(const uint8_t* qh) {
  const __m256i spread = each_eight_times(qh);
  const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201u));
  const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
  return _mm256_and_si256(set, _mm256_set1_epi8(16));
}

TANDEM_INLINE __m256i lookup(__m256i indices, const int8_t (&table)[16]) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load128(table)), indices);
}

// The `d` (or `m`) of eight blocks.
template <class Block>
TANDEM_INLINE __m256 halves_of(const Block* b, fp16_t Block::*field) {
  return _mm256_cvtph_ps(_mm_setr_epi16(static_cast<short>(b[0].*field), static_cast<short>(b[1].*field),
                                        static_cast<short>(b[2].*field), static_cast<short>(b[3].*field),
                                        static_cast<short>(b[4].*field), static_cast<short>(b[5].*field),
                                        static_cast<short>(b[6].*field), static_cast<short>(b[7].*field)));
}

// Most: the largest u.
template <class BlockType, int Most, int Centre, bool HasMin>
struct Unsigned32 {
  using Block = BlockType;
  static constexpr bool is_signed = false;
  static constexpr int most = Most;
  static constexpr int centre = Centre;
  static constexpr bool has_min = HasMin;  // whether the offset is more than -centre * scale
};

struct Q4_0 : Unsigned32<BlockQ4_0, 15, 8, false> {
  TANDEM_INLINE static __m256i of_nibbles(__m256i v) { return v; }
  TANDEM_INLINE static __m256i quants(const Block& b) { return nibbles(b.qs); }
  TANDEM_INLINE static __m256 scales(const Block* b) { return halves_of(b, &Block::d); }
};

struct Q4_1 : Unsigned32<BlockQ4_1, 15, 8, true> {
  TANDEM_INLINE static __m256i of_nibbles(__m256i v) { return v; }
  TANDEM_INLINE static __m256i quants(const Block& b) { return nibbles(b.qs); }
  TANDEM_INLINE static __m256 scales(const Block* b) { return halves_of(b, &Block::d); }
  TANDEM_INLINE static __m256 mins(const Block* b) { return halves_of(b, &Block::m); }
};

struct Q5_0 : Unsigned32<BlockQ5_0, 31, 16, false> {
  TANDEM_INLINE static __m256i quants(const Block& b) {
    return _mm256_or_si256(nibbles(b.qs), fifth_bits(b.qh));
  }
  TANDEM_INLINE static __m256 scales(const Block* b) { return halves_of(b, &Block::d); }
};

struct Q5_1 : Unsigned32<BlockQ5_1, 31, 16, true> {
  TANDEM_INLINE static __m256i quants(const Block& b) {
    return _mm256_or_si256(nibbles(b.qs), fifth_bits(b.qh));
  }
  TANDEM_INLINE static __m256 scales(const Block* b) { return halves_of(b, &Block::d); }
  TANDEM_INLINE static __m256 mins(const Block* b) { return halves_of(b, &Block::m); }
};

struct MXFP4 : Unsigned32<BlockMXFP4, 24, 12, false> {
  TANDEM_INLINE static __m256i of_nibbles(__m256i v) {
    static constexpr int8_t kLevels[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    return lookup(v, kLevels);
  }
  TANDEM_INLINE static __m256i quants(const Block& b) { return of_nibbles(nibbles(b.qs)); }
  TANDEM_INLINE static __m256 scales(const Block* b) {
    const __m256i e = _mm256_setr_epi32(b[0].e, b[1].e, b[2].e, b[3].e, b[4].e, b[5].e, b[6].e, b[7].e);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    const __m256i is_normal = _mm256_cmpgt_epi32(e, _mm256_set1_epi32(1));
    return _mm256_castsi256_ps(_mm256_blendv_epi8(subnormal, normal, is_normal));
  }
};

// Returns the offset of a weight's unsigned integer, without the centre.
template <class Format>
TANDEM_INLINE __m256 offsets_of(const typename Format::Block* blocks, __m256 scales) {
  if constexpr (Format::has_min) {
    return Format::mins(blocks);
  } else {
    return _mm256_mul_ps(scales, _mm256_set1_ps(-static_cast<float>(Format::centre)));
  }
}

template <class BlockType>
struct Signed32 {
  using Block = BlockType;
  static constexpr bool is_signed = true;
  static constexpr int centre = 0;
  static constexpr bool has_min = false;
};

struct Q8_0 : Signed32<BlockQ8_0> {
  TANDEM_INLINE static __m256i quants(const Block& b) { return load256(b.qs); }
  TANDEM_INLINE static __m256 scales(const Block* b) { return halves_of(b, &Block::d); }
};

struct IQ4_NL : Signed32<BlockIQ4_NL> {
  TANDEM_INLINE static __m256i quants(const Block& b) { return lookup(nibbles(b.qs), kvalues_iq4nl); }
  TANDEM_INLINE static __m256 scales(const Block* b) { return halves_of(b, &Block::d); }
};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
