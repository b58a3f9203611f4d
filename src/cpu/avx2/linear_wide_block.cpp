// Products with weights in blocks of 64 and 128: NVFP4 Q1_0. Dot products for any number of tokens, four at a time. On two cores of an
// Emerald Rapids 64 tokens of NVFP4 are as fast as weights that are floats first, 256 take 1.5 times as long, and 2.3 times as long as
// with floats of AVX-512: a panel is missing. Q1_0 is never slower so.
#include "cpu/avx2/linear_drive.h"
#include "gguf/blocks.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// Activations in blocks of 32. F::each(block, fn) calls fn(i, w, d) for every 32 columns: signed integers, and the scales of their
// fours, which are the lanes of a sum of products.
template <class F, class BlockType>
struct DotWide {
  using Block = BlockType;
  static constexpr ActFormat format{32, 0, 0, false};
  static constexpr int most_tokens = 4, stream_tokens = 1;
  static constexpr int64_t k_step = Block::kElements;
  using Step = Block;
  template <int T>
  using Sums = SumsOfLanes<T>;
  TANDEM_INLINE static size_t row_bytes(int64_t k) { return static_cast<size_t>(k / k_step) * sizeof(Block); }

  template <int T>
  TANDEM_INLINE static void add(const Block& block, const ActToken (&x)[T], int64_t column, Sums<T>& sums) {
    F::each(block, [&](int i, __m256i w, __m256 d) __attribute__((always_inline)) {
      const __m256i magnitude = _mm256_abs_epi8(w);
      for (int t = 0; t < T; ++t) {
        const __m256i columns = load256(x[t].columns + column + 32 * i);
        const __m256 scale = _mm256_mul_ps(d, _mm256_broadcast_ss(x[t].scales + column / 32 + i));
        sums.acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot_of_4(magnitude, _mm256_sign_epi8(columns, w))), scale, sums.acc[t]);
      }
    });
  }
};

struct DotNVFP4 : DotWide<DotNVFP4, BlockNVFP4> {
  // As e4m3_to_fp32_half().
  TANDEM_INLINE static __m128 scales(const uint8_t* d) {
    const __m128i code = _mm_and_si128(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(static_cast<int>(load_u32(d)))), _mm_set1_epi32(127));
    const __m128 normal = _mm_castsi128_ps(_mm_add_epi32(_mm_slli_epi32(code, 20), _mm_set1_epi32(119 << 23)));
    const __m128 small = _mm_mul_ps(_mm_cvtepi32_ps(code), _mm_set1_ps(0x1p-10f));
    const __m128 finite = _mm_blendv_ps(normal, small, _mm_castsi128_ps(_mm_cmplt_epi32(code, _mm_set1_epi32(8))));
    return _mm_or_ps(finite, _mm_castsi128_ps(_mm_cmpeq_epi32(code, _mm_set1_epi32(127))));  // all bits are a NaN
  }
  template <class Fn>
  TANDEM_INLINE static void each(const Block& block, const Fn& fn) {
    const __m256 d = _mm256_castps128_ps256(scales(block.d));
    const __m128i fifteen = _mm_set1_epi8(15);
    const __m256i levels = _mm256_broadcastsi128_si256(load128(kvalues_mxfp4));
    for (int i = 0; i < 2; ++i) {
      const __m128i both = load128(block.qs + 16 * i);
      const __m128i low = _mm_and_si128(both, fifteen), high = _mm_and_si128(_mm_srli_epi16(both, 4), fifteen);
      const __m256i codes = _mm256_set_m128i(_mm_unpackhi_epi64(low, high), _mm_unpacklo_epi64(low, high));
      const __m256i halves = _mm256_add_epi32(_mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1), _mm256_set1_epi32(2 * i));
      fn(i, _mm256_shuffle_epi8(levels, codes), _mm256_permutevar8x32_ps(d, halves));
    }
  }
};

struct DotQ1_0 : DotWide<DotQ1_0, BlockQ1_0> {
  template <class Fn>
  TANDEM_INLINE static void each(const Block& block, const Fn& fn) {
    const __m256i bit_of = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
    const __m256 d = _mm256_cvtph_ps(_mm_set1_epi16(static_cast<short>(block.d)));
    for (int i = 0; i < 4; ++i) {
      const __m256i bits = _mm256_and_si256(each_eight_times(block.qs + 4 * i), bit_of);
      const __m256i clear = _mm256_cmpeq_epi8(bits, _mm256_setzero_si256());
      fn(i, _mm256_or_si256(clear, _mm256_set1_epi8(1)), d);
    }
  }
};

// No number of tokens takes a panel.
template <class Dot>
constexpr DtypeKernels dot_kernels{Dot::format, Dot::format, INT64_MAX, 1, 0, dot_rows<Dot>, nullptr};

}  // namespace

const DtypeKernels* wide_block_kernels(DType dtype) {
  switch (dtype) {
    case DType::NVFP4: return &dot_kernels<DotNVFP4>;
    case DType::Q1_0: return &dot_kernels<DotQ1_0>;
    default: return nullptr;
  }
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
