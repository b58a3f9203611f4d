// Products with weights in blocks of 64 and 128: NVFP4 Q1_0.
#include "cpu/avx2/linear_byte_panel.h"
#include "cpu/avx2/linear_drive.h"
#include "cpu/avx2/linear_formats_32.h"
#include "cpu/simd/unroll.h"
#include "gguf/blocks.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// Signed weights plus F::centre. F::each(block, fn) calls fn(i, w, d) for every 32 columns: signed integers, and the scales of their fours.
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

// What linear_drive.h asks of dot products, of two blocks at a time.
template <class BlockType>
struct TwoBlocks {
  using Block = BlockType;
  static constexpr int most_tokens = 4, stream_tokens = 4;
  static constexpr int64_t k_step = 2 * Block::kElements;
  struct Step {
    Block blocks[2];
  };
  template <int T>
  using Sums = SumsOfLanes<T>;
  TANDEM_INLINE static size_t row_bytes(int64_t k) { return static_cast<size_t>(k / Block::kElements) * sizeof(Block); }
};

// As e4m3_to_fp32_half(): a code's bits are those of a half whose exponent is 8 less, and the levels are doubled.
TANDEM_INLINE __m256 scales_of_e4m3(__m128i codes) {
  const __m128i code = _mm_and_si128(_mm_cvtepu8_epi16(codes), _mm_set1_epi16(127));
  const __m128i nan = _mm_cmpeq_epi16(code, _mm_set1_epi16(127));
  return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(_mm_slli_epi16(code, 7), nan)), _mm256_set1_ps(128));
}

// The lanes of sums are the 16 columns of a scale, of two blocks: eight bytes each, which two shuffles put beside each other. 128 columns
// cost 15 operations of a token and some 25 of the weights.
struct DotNVFP4 : TwoBlocks<BlockNVFP4> {
  static constexpr ActFormat format{32, 16, 0, false, ActOrder::halves};

  template <int T>
  TANDEM_INLINE static void add(const Step& step, const ActToken (&x)[T], int64_t column, Sums<T>& sums) {
    const Block &a = step.blocks[0], &b = step.blocks[1];
    const __m256 first = _mm256_castsi256_ps(load256(a.qs)), second = _mm256_castsi256_ps(load256(b.qs));
    const __m256i both[2] = {_mm256_castps_si256(_mm256_shuffle_ps(first, second, 0x88)),
                             _mm256_castps_si256(_mm256_shuffle_ps(first, second, 0xdd))};
    __m256i sum[T];  // of int16 lanes: all four products fit
    for (int t = 0; t < T; ++t) sum[t] = _mm256_setzero_si256();
    unroll<4>([&](auto j) __attribute__((always_inline)) {
      const __m256i four = j.value < 2 ? both[j.value] : _mm256_srli_epi16(both[j.value % 2], 4);
      const __m256i w = MXFP4::of_nibbles(_mm256_and_si256(four, _mm256_set1_epi8(15)));
      for (int t = 0; t < T; ++t) add_dot(sum[t], w, load256(x[t].columns + column + 32 * j.value));
    });
    const auto codes = [](const Block& block) __attribute__((always_inline)) {
      return _mm_cvtsi32_si128(static_cast<int>(load_u32(block.d)));
    };
    const __m256 d = scales_of_e4m3(_mm_unpacklo_epi16(codes(a), codes(b)));
    const __m256 offset = _mm256_mul_ps(d, _mm256_set1_ps(-MXFP4::centre));
    for (int t = 0; t < T; ++t) {
      const __m256i in_order = load256(x[t].sums + column / 16);
      const __m256 of_lanes = _mm256_castsi256_ps(_mm256_permute4x64_epi64(in_order, 0xd8));
      const __m256 of_blocks = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(x[t].scales + column / 32));
      const __m256 scale = _mm256_permutevar_ps(of_blocks, _mm256_setr_epi32(0, 0, 2, 2, 1, 1, 3, 3));
      const __m256 with_offsets = _mm256_fmadd_ps(offset, of_lanes, sums.acc[t]);
      sums.acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(widened(sum[t])), _mm256_mul_ps(d, scale), with_offsets);
    }
  }

  static constexpr int sub = 16, centre = MXFP4::centre;
  template <class Fn>
  TANDEM_INLINE static void each(const Block& block, const Fn& fn) {
    const __m256 d = scales_of_e4m3(_mm_cvtsi32_si128(static_cast<int>(load_u32(block.d))));
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

// The lanes of sums are the 32 columns of an activation's scale, of two blocks: a word of bits each. What is summed are the columns
// whose bits are 1, twice, less all. 256 columns cost 21 operations of a token and some 30 of the weights.
struct DotQ1_0 : TwoBlocks<BlockQ1_0> {
  static constexpr ActFormat format{32, 32, 0, false, ActOrder::blocks};

  TANDEM_INLINE static __m256 scales(fp16_t d) { return _mm256_cvtph_ps(_mm_set1_epi16(static_cast<short>(d))); }

  template <int T>
  TANDEM_INLINE static void add(const Step& step, const ActToken (&x)[T], int64_t column, Sums<T>& sums) {
    const Block &a = step.blocks[0], &b = step.blocks[1];
    const __m256i words = _mm256_inserti128_si256(_mm256_castsi128_si256(load128(a.qs)), load128(b.qs), 1);
    __m256i sum[T];
    for (int t = 0; t < T; ++t) sum[t] = _mm256_setzero_si256();
    unroll<8>([&](auto j) __attribute__((always_inline)) {
      constexpr int byte = j.value / 2;
      const __m256i of_four = _mm256_broadcastsi128_si256(_mm_setr_epi32(0x01010101 * byte, 0x01010101 * (4 + byte),  //
                                                                         0x01010101 * (8 + byte), 0x01010101 * (12 + byte)));
      const __m256i bit_of = _mm256_set1_epi32(j.value % 2 == 0 ? 0x08040201 : static_cast<int>(0x80402010));
      const __m256i bits = _mm256_and_si256(_mm256_shuffle_epi8(words, of_four), bit_of);
      const __m256i w = _mm256_min_epu8(bits, _mm256_set1_epi8(1));
      for (int t = 0; t < T; ++t) add_dot(sum[t], w, load256(x[t].columns + column + 32 * j.value));
    });
    const __m256 d = _mm256_blend_ps(scales(a.d), scales(b.d), 0xf0), twice = _mm256_add_ps(d, d);
    for (int t = 0; t < T; ++t) {
      const __m256 less_all = _mm256_fnmadd_ps(d, _mm256_loadu_ps(x[t].sums + column / 32), sums.acc[t]);
      const __m256 scale = _mm256_mul_ps(twice, _mm256_loadu_ps(x[t].scales + column / 32));
      sums.acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(widened(sum[t])), scale, less_all);
    }
  }

  static constexpr int sub = 32, centre = 1;
  template <class Fn>
  TANDEM_INLINE static void each(const Block& block, const Fn& fn) {
    const __m256i bit_of = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
    const __m256 d = scales(block.d);
    for (int i = 0; i < 4; ++i) {
      const __m256i bits = _mm256_and_si256(each_eight_times(block.qs + 4 * i), bit_of);
      const __m256i clear = _mm256_cmpeq_epi8(bits, _mm256_setzero_si256());
      fn(i, _mm256_or_si256(clear, _mm256_set1_epi8(1)), d);
    }
  }
};

// As measured on an Emerald Rapids with AVX2 and with AVX-VNNI, from memory, dot products against panels: of 4 tokens 1.6 to 2.4 times
// as fast, of 8 1.25 to 1.65, of 12 1.1 to 1.4, of 16 1.0 to 1.25; in the best of three runs NVFP4 of 12 0.9 to 1.2.
template <class Dot>
constexpr DtypeKernels wide_kernels = dtype_kernels<Dot, WidePanel<Dot>>(13);

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
