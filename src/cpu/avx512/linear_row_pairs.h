// Weights of one row, as linear_row_formats.h has them, of NVFP4.
//
// Eight bytes of nibbles stay where they lie, so that a sub-block has two lanes. For 512 columns, which are 288 bytes, some 45 vector
// operations of the weights and 20 of each token: 33 cycles of a core that starts two a cycle, 26 GB/s at 3 GHz. Two cores of a Zen 5 read
// 46, 48, 47 and 40 GB/s with one to four tokens (strips 44, 41, 39, 36) where plain loads read 54.
#pragma once

#include "cpu/avx512/linear_row_formats.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

struct RowNVFP4 {
  using Block = BlockNVFP4;
  using Columns = RowPairs;
  static constexpr int unit = Block::kElements;
  static constexpr Order order = Order::pairs;
  static constexpr size_t block_bytes = sizeof(Block);
  static constexpr int max_tokens = 4, narrow_tokens = 4;

  template <int T, class Units>
  TANDEM_INLINE static void add(const std::byte* w, const RowPairs* x, Units units, __m512* sums) {
    // Two words of each block: its four scales.
    static constexpr HeadLoads<block_bytes, 2, 8> loads{};
    __m512i heads = _mm512_setzero_si512();
    unroll<loads.n_loads>([&](auto i) __attribute__((always_inline)) {
      constexpr auto load = loads.loads[i.value];
      heads = _mm512_mask_loadu_epi16(heads, load.mask, w + 2 * load.offset);
    });
    constexpr auto place = [](size_t block) { return loads.places[block] / 2; };
    static_assert(loads.places[1] % 2 == 0);
    const __m512i in_order = _mm512_setr_epi32(place(0), place(1), place(2), place(3), place(4), place(5), place(6), place(7), 0, 0, 0, 0,
                                               0, 0, 0, 0);
    const __m512 words = units.template present<1, 16>(_mm512_castsi512_ps(_mm512_permutexvar_epi32(in_order, heads)));
    const __m512i halves = e4m3_to_halves(_mm512_cvtepu8_epi16(_mm512_castsi512_si256(_mm512_castps_si512(words))));
    const __m512i levels = level_table<12>(kvalues_mxfp4);
    unroll<4>([&](auto pair) __attribute__((always_inline)) {  // of blocks
      constexpr int i = decltype(pair)::value;
      const auto qs = [&](int block) __attribute__((always_inline)) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + block * static_cast<int>(block_bytes) + offsetof(Block, qs)));
      };
      const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(qs(2 * i)), qs(2 * i + 1), 1);
      const __m512i first = _mm512_shuffle_epi8(levels, low_nibbles(both)), second = _mm512_shuffle_epi8(levels, high_nibbles(both));
      const __m512i twice = _mm512_add_epi16(_mm512_set1_epi16(8 * i), _mm512_setr_epi32(0, 0x10001, 0x20002, 0x30003, 0x40004, 0x50005,
                                                                                        0x60006, 0x70007, 0, 0, 0, 0, 0, 0, 0, 0));
      const __m512i spread = _mm512_permutexvar_epi16(twice, halves);
      const __m512 scales = _mm512_cvtph_ps(_mm512_castsi512_si256(spread));
      for (int t = 0; t < T; ++t) {
        __m512i dot = dot_u8s8<false>(_mm512_load_si512(x[t].start[i]), first, _mm512_load_si512(x[t].q + 128 * i));
        dot = dot_u8s8<false>(dot, second, _mm512_load_si512(x[t].q + 128 * i + 64));
        const __m512 scale = _mm512_mul_ps(scales, _mm512_load_ps(x[t].scale[i]));
        sums[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale, sums[t]);
      }
    });
  }
};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
