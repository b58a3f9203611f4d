// Products with weights in blocks of 64 and 128: NVFP4 Q1_0.
#include "cpu/avx2/linear_byte_panel.h"
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

// Signed weights plus F::centre.
template <class F>
struct WidePanel : BytePanelOf<F::sub, F::centre, false> {
  using Block = typename F::Block;
  using typename BytePanelOf<F::sub, F::centre, false>::Chunk;
  static constexpr int parts = Block::kElements / 32, subs = 32 / F::sub;
  TANDEM_INLINE static size_t row_bytes(int64_t k) { return F::row_bytes(k); }

  TANDEM_INLINE static void pack(const Strip& strip, int64_t k0, int64_t columns, Chunk& to) {
    for (int64_t b = 0; b < columns / Block::kElements; ++b) {
      for (int p = 0; p < 2; ++p) {
        __m256i v[parts][8];
        for (int r = 0; r < 8; ++r) {
          const Block& block = reinterpret_cast<const Block*>(strip.rows[8 * p + r])[k0 / Block::kElements + b];
          prefetch<_MM_HINT_T1>(&block, strip.to_next, sizeof(Block));
          F::each(block, [&](int i, __m256i w, __m256 d) __attribute__((always_inline)) {
            v[i][r] = _mm256_add_epi8(w, _mm256_set1_epi8(F::centre));
            auto* scales = to.scales + (parts * b + i) * subs;
            scales[0][p][r] = _mm256_cvtss_f32(d);
            if constexpr (subs == 2) scales[1][p][r] = _mm_cvtss_f32(_mm256_extractf128_ps(d, 1));
          });
        }
        for (int i = 0; i < parts; ++i) {
          transpose8(v[i]);
          for (int g = 0; g < 8; ++g) store256(to.w[8 * (parts * b + i) + g][p], v[i][g]);
        }
      }
    }
  }
};

struct DotNVFP4 : DotWide<DotNVFP4, BlockNVFP4> {
  static constexpr int sub = 16, centre = 12, panel_from = 4;
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
  static constexpr int sub = 32, centre = 1, panel_from = 3;
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

// Whole program on a Zen 5, tokens/s by dot products and by panels: NVFP4 with three tokens 71 and 61, four 79 and 87, eight 81 and 143;
// Q1_0 with three 104 and 131, four 111 and 154, eight 114 and 216.
template <class Dot>
constexpr DtypeKernels wide_kernels = dtype_kernels<Dot, WidePanel<Dot>>(Dot::panel_from);

}  // namespace

const DtypeKernels* wide_block_kernels(DType dtype) {
  switch (dtype) {
    case DType::NVFP4: return &wide_kernels<DotNVFP4>;
    case DType::Q1_0: return &wide_kernels<DotQ1_0>;
    default: return nullptr;
  }
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
