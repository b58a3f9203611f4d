// Codes of a cache's blocks of 32 columns, for attention_codes.h. Blocks have kBytes, their scale first. codes(raw(block)) has a
// byte for each column, in order: a code is the byte, signed, less kBias. raw() is what the bytes of several rows are interleaved
// of; codes() works on each byte by itself, and each half of the vector. kMinAt: where a block's minimum is, 0 if it has none.
#pragma once

#include <cstddef>
#include <cstring>

#include "gguf/blocks.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

struct CodesQ8 {
  static constexpr int kBytes = sizeof(BlockQ8_0), kBias = 0, kMinAt = 0;

  TANDEM_INLINE static __m256i raw(const std::byte* block) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + offsetof(BlockQ8_0, qs)));
  }
  TANDEM_INLINE static __m256i codes(__m256i raw) { return raw; }
};

// Four bits of each column: 16 bytes, whose low nibbles are the first columns.
template <class Block, int kZero, int kMin = 0>
struct CodesNibbles {
  static constexpr int kBytes = sizeof(Block), kBias = kZero, kMinAt = kMin;

  TANDEM_INLINE static __m256i raw(const std::byte* block) {
    const std::byte* from = block + offsetof(Block, qs);
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  TANDEM_INLINE static __m256i codes(__m256i raw) {
    const __m256i shifted = _mm256_srlv_epi32(raw, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
    return _mm256_and_si256(shifted, _mm256_set1_epi8(15));
  }
};
using CodesQ4 = CodesNibbles<BlockQ4_0, 8>;
using CodesQ4WithMin = CodesNibbles<BlockQ4_1, 0, offsetof(BlockQ4_1, m)>;

struct CodesIQ4 : CodesNibbles<BlockIQ4_NL, 0> {
  TANDEM_INLINE static __m256i codes(__m256i raw) {
    const __m128i levels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kvalues_iq4nl));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(levels), CodesNibbles::codes(raw));
  }
};

// Four bits of each column like those, and a fifth elsewhere.
template <class Block, int kZero, int kMin = 0>
struct CodesFiveBits {
  static constexpr int kBytes = sizeof(Block), kBias = kZero, kMinAt = kMin;
  using Nibbles = CodesNibbles<Block, 0>;

  TANDEM_INLINE static __m256i raw(const std::byte* block) {
    int32_t high;
    memcpy(&high, block + offsetof(Block, qh), sizeof high);
    const __m256i byte_of = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(high), byte_of);
    const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
    return _mm256_or_si256(Nibbles::codes(Nibbles::raw(block)),
                           _mm256_and_si256(is_set, _mm256_set1_epi8(16)));
  }
  TANDEM_INLINE static __m256i codes(__m256i raw) { return raw; }
};
using CodesQ5 = CodesFiveBits<BlockQ5_0, 16>;
using CodesQ5WithMin = CodesFiveBits<BlockQ5_1, 0, offsetof(BlockQ5_1, m)>;

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
