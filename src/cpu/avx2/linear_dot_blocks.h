// Dot products with weights in blocks of 32, unsigned, whose sums' lanes are blocks.
//
// A vector of one block's columns gives sums that share a scale, and costs four operations of a token: product, widening, conversion,
// fma. Here eight blocks are transposed first: a vector holds four columns of each, products are added up as int16, and the sums are
// converted and multiplied by a vector of scales once. For 256 columns some 20 operations of a token instead of 34, for 8 more of the
// weights.
#pragma once

#include "cpu/avx2/linear_drive.h"
#include "cpu/avx2/linear_formats_32.h"
#include "cpu/simd/unroll.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

template <class Format>
struct DotBlocks {
  using Block = typename Format::Block;
  static_assert(!Format::is_signed);
  static constexpr ActFormat format{32, 32, 0, false, ActOrder::blocks};
  static constexpr int most_tokens = 4, stream_tokens = 4;
  TANDEM_INLINE static size_t row_bytes(int64_t k) { return static_cast<size_t>(k) / 32 * sizeof(Block); }

  static constexpr int64_t k_step = 256;
  struct Step {
    Block blocks[8];
  };
  template <int T>
  using Sums = SumsOfLanes<T>;

  static constexpr int kSums = kVnni || 8 * 2 * Format::most * 127 <= 32767 ? 1 : 2;  // int16 lanes hold all eight products, or four
  static_assert(kVnni || 8 / kSums * 2 * Format::most * 127 <= 32767);

  template <int T>
  TANDEM_INLINE static void add(const Step& step, const ActToken (&x)[T], int64_t column, Sums<T>& sums) {
    const Block* blocks = step.blocks;
    __m256i both[4];
    for (int b = 0; b < 4; ++b) {
      both[b] = _mm256_inserti128_si256(_mm256_castsi128_si256(load128(blocks[b].qs)), load128(blocks[b + 4].qs), 1);
    }
    transpose4(both);
    __m256i sum[kSums][T];
    for (int s = 0; s < kSums; ++s) {
      for (int t = 0; t < T; ++t) sum[s][t] = _mm256_setzero_si256();
    }
    // Columns 4j.. of all blocks, then 16 + 4j...
    unroll<4>([&](auto j) __attribute__((always_inline)) {
      const __m256i four = both[j.value], low = _mm256_set1_epi8(15);
      const __m256i w[2] = {Format::of_nibbles(_mm256_and_si256(four, low)),
                            Format::of_nibbles(_mm256_and_si256(_mm256_srli_epi16(four, 4), low))};
      for (int i = 0; i < 2; ++i) {
        for (int t = 0; t < T; ++t) add_dot(sum[i % kSums][t], w[i], load256(x[t].columns + column + 32 * (j.value + 4 * i)));
      }
    });
    const int64_t b = column / 32;
    const __m256 d = Format::scales(blocks), offsets = offsets_of<Format>(blocks, d);
    for (int t = 0; t < T; ++t) {
      const __m256 with_offsets = _mm256_fmadd_ps(offsets, _mm256_loadu_ps(x[t].sums + b), sums.acc[t]);
      const __m256 scales = _mm256_mul_ps(d, _mm256_loadu_ps(x[t].scales + b));
      __m256i total = widened(sum[0][t]);
      if constexpr (kSums == 2) total = _mm256_add_epi32(total, widened(sum[1][t]));
      sums.acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total), scales, with_offsets);
    }
  }
};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
