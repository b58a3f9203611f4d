// Panels of unsigned bytes with a scale for every 16 or 32 columns.
#pragma once

#include "cpu/avx2/linear_drive.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// Weights are scale * (w - centre) + offset, sub columns to a scale. A kernel adds row_bytes() and pack().
//
// A group is 4 columns of 8 rows; the lanes sum the groups of a scale, starting from the centres. 32 columns of one scale cost 16
// operations and 4 at their end, for 256 products, and with VNNI 8 and 3; a tile of 2 x 4 vectors loads 6 for every 8 products. Larger
// tiles were not faster with VNNI: their sums leave the registers.
template <int sub, int centre, bool has_min>
struct BytePanelOf {
  static_assert(sub == 32 || !has_min);
  static constexpr ActFormat format{32, sub, centre, false};
  static constexpr int most_tokens = 4;
  static constexpr int64_t k_columns = 1024;
  struct alignas(64) Chunk {
    uint8_t w[k_columns / 4][2][32];  // [group][half of the strip][8 rows x 4 columns]
    float scales[k_columns / sub][2][8];
    float offsets[has_min ? k_columns / 32 : 1][2][8];
  };

  template <int T>
  TANDEM_INLINE static void tile(const Chunk& chunk, const ActToken (&x)[T], int64_t k0, int64_t columns,
                                 __m256 (&sums)[2][T]) {
    constexpr int groups = sub / 4;
    for (int t = 0; t < T; ++t) sums[0][t] = sums[1][t] = _mm256_setzero_ps();
    for (int64_t s = 0; s < columns / sub; ++s) {
      const int64_t xs = k0 / sub + s, xb = xs * sub / 32;
      __m256i acc[2][T];
      for (int t = 0; t < T; ++t) acc[0][t] = acc[1][t] = _mm256_set1_epi32(x[t].centres[xs]);
#pragma GCC unroll 8
      for (int g = 0; g < groups; ++g) {
        const __m256i w0 = load256(chunk.w[groups * s + g][0]), w1 = load256(chunk.w[groups * s + g][1]);
        for (int t = 0; t < T; ++t) {
          const __m256i column = broadcast_u32(x[t].columns + sub * xs + 4 * g);
          add_dot(acc[0][t], w0, column);
          add_dot(acc[1][t], w1, column);
        }
      }
      for (int t = 0; t < T; ++t) {
        const __m256 scale = _mm256_broadcast_ss(x[t].scales + xb);
        for (int p = 0; p < 2; ++p) {
          const __m256 both = _mm256_mul_ps(scale, _mm256_load_ps(chunk.scales[s][p]));
          sums[p][t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(widened(acc[p][t])), both, sums[p][t]);
          if constexpr (has_min) {
            const __m256 offset = _mm256_load_ps(chunk.offsets[s][p]);
            sums[p][t] = _mm256_fmadd_ps(_mm256_broadcast_ss(x[t].sums + xb), offset, sums[p][t]);
          }
        }
      }
    }
  }
};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
