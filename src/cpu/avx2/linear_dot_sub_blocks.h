// Dot products with weights of Q4_K and Q5_K whose sums' lanes are sub-blocks.
//
// A row's sub-blocks lie one behind the other, so that a vector of one holds columns that share a scale, and each product of such a
// vector is multiplied by a scale of its own: three operations for 32 products. Here four vectors, of two sub-blocks each, are
// transposed first, so that a vector holds four columns of all of them, products are added up as int16, and the sums are multiplied
// once by a vector of scales: 17 operations for the 256 products of a token instead of 24, for 8 more to transpose a row's weights.
#pragma once

#include "cpu/avx2/linear_super.h"
#include "cpu/simd/unroll.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

template <class Format>
struct DotSubBlocks {
  using Block = typename Format::Block;
  static constexpr ActFormat format{256, 32, 0, false, ActOrder::sub_blocks};
  static constexpr int most_tokens = 4, stream_tokens = 4;
  TANDEM_INLINE static size_t row_bytes(int64_t k) { return super_row_bytes<Format>(k); }

  static constexpr int64_t k_step = 256;
  using Step = Block;
  template <int T>
  using Sums = SumsOfLanes<T>;

  template <int T>
  TANDEM_INLINE static void add(const Block& block, const ActToken (&x)[T], int64_t column, Sums<T>& sums) {
    const SubScales s = Format::scales(block);
    const __m256i scales[1] = {_mm256_broadcastq_epi64(s.scales)};
    const __m256 offsets[1] = {_mm256_mul_ps(_mm256_set1_ps(s.offset_factor), bytes_to_floats<0>(s.offsets))};
    const auto factor = [&](int, int t) __attribute__((always_inline)) { return _mm256_set1_ps(s.d * x[t].scales[column / 256]); };
    const Block* blocks[1] = {&block};
    add_blocks<1, T>(blocks, scales, offsets, factor, x, column, &sums);
  }

  // Of each of four rows, whose scales are unpacked together.
  template <int T>
  TANDEM_INLINE static void add_four(const Block* const (&blocks)[4], const ActToken (&x)[T], int64_t column, Sums<T> (&sums)[4]) {
    FourHeads heads;
    heads_of_k4(blocks, heads);
    float factors[T][4][2];
    for (int t = 0; t < T; ++t) {
      const __m256 scale = _mm256_blend_ps(_mm256_set1_ps(1.0f), _mm256_broadcast_ss(x[t].scales + column / 256), 0x55);
      _mm256_storeu_ps(factors[t][0], _mm256_mul_ps(_mm256_loadu_ps(heads.factors[0]), scale));
    }
    asm("" : "+m"(heads), "+m"(factors));  // else GCC takes them from registers, by shuffles, where loads do
    constexpr int R = T == 1 ? 2 : 1;      // rows at a time: what the registers hold
#pragma GCC unroll 1
    for (int r0 = 0; r0 < 4; r0 += R) {
      __m256i scales[R];
      __m256 offsets[R];
      for (int r = 0; r < R; ++r) {
        scales[r] = _mm256_broadcastq_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(heads.scales[r0 + r])));
        const __m128i mins = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(heads.mins[r0 + r]));
        offsets[r] = _mm256_mul_ps(_mm256_broadcast_ss(&heads.factors[r0 + r][1]), bytes_to_floats<0>(mins));
      }
      const auto factor = [&](int r, int t) __attribute__((always_inline)) { return _mm256_broadcast_ss(&factors[t][r0 + r][0]); };
      add_blocks<R, T>(blocks + r0, scales, offsets, factor, x, column, sums + r0);
    }
  }

 private:
  // Groups of four columns that a lane sums; whether their sum fits int16.
  static constexpr int kGroups = 4;
  static constexpr bool kFits = kGroups * (kVnni ? 4 : 2) * Format::most * 127 <= 32767;
  static_assert(kFits || kVnni);

  // The scales of sub-blocks 2p + I in lanes p: twice as int16, or once, with VNNI.
  template <int I>
  TANDEM_INLINE static __m256i lanes(__m256i scales) {
    constexpr auto z = static_cast<char>(0x80), twice = kVnni ? z : static_cast<char>(0);
    const auto at = [](int s) { return static_cast<char>(2 * s + I); };
    const auto again = [&](int s) { return static_cast<char>(twice | (2 * s + I)); };
    return _mm256_shuffle_epi8(scales, _mm256_broadcastsi128_si256(_mm_setr_epi8(at(0), z, again(0), z, at(1), z, again(1), z,  //
                                                                                  at(2), z, again(2), z, at(3), z, again(3), z)));
  }
  TANDEM_INLINE static __m256i scaled(__m256i sums, __m256i scales) {
    return kFits ? _mm256_madd_epi16(sums, scales) : _mm256_mullo_epi32(sums, scales);
  }

  template <int R, int T, class Factor>
  TANDEM_INLINE static void add_blocks(const Block* const* blocks, const __m256i (&scales)[R], const __m256 (&offsets)[R],
                                       const Factor& factor, const ActToken (&x)[T], int64_t column, Sums<T>* sums) {
    __m256i sum[R][2][T], both[R][4];
    for (int r = 0; r < R; ++r) {
      for (int t = 0; t < T; ++t) sum[r][0][t] = sum[r][1][t] = _mm256_setzero_si256();
      for (int p = 0; p < 4; ++p) both[r][p] = load256(blocks[r]->qs + 32 * p);
      transpose4(both[r]);
    }
    unroll<4>([&](auto j) __attribute__((always_inline)) {
      for (int r = 0; r < R; ++r) {
        const __m256i four = both[r][j.value];
        __m256i w[2] = {_mm256_and_si256(four, _mm256_set1_epi8(15)),
                        _mm256_and_si256(_mm256_srli_epi16(four, 4), _mm256_set1_epi8(15))};
        Format::template add_high_bits<j.value>(*blocks[r], w);
        for (int i = 0; i < 2; ++i) {
          for (int t = 0; t < T; ++t) add_dot(sum[r][i][t], w[i], load256(x[t].columns + column + 32 * (2 * j.value + i)));
        }
      }
    });
    for (int r = 0; r < R; ++r) {
      const __m256i even = lanes<0>(scales[r]), odd = lanes<1>(scales[r]);
      for (int t = 0; t < T; ++t) {
        const __m256i total = _mm256_add_epi32(scaled(sum[r][0][t], even), scaled(sum[r][1][t], odd));
        const __m256 with_offsets = _mm256_fmadd_ps(offsets[r], _mm256_loadu_ps(x[t].sums + column / 32), sums[r].acc[t]);
        sums[r].acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total), factor(r, t), with_offsets);
      }
    }
  }
};

template <class Format>
constexpr DtypeKernels sub_block_kernels(int64_t panel_from) {
  return dtype_kernels<DotSubBlocks<Format>, BytePanelK<Format>>(panel_from);
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
