// Products with weights in blocks of 32: Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 IQ4_NL MXFP4.
#include <type_traits>

#include "cpu/avx2/linear_byte_panel.h"
#include "cpu/avx2/linear_dot_blocks.h"
#include "cpu/avx2/linear_drive.h"
#include "cpu/avx2/linear_formats_32.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// Calls fn(eight blocks, number of the first) along a row; the last, shorter group is copied into zeroed
// ones, which multiply the zeros that pad the activations.
template <class Format, class Fn>
TANDEM_INLINE void for_eight_blocks(const typename Format::Block* blocks, int64_t n, Fn&& fn) {
  typename Format::Block rest[8];
  for (int64_t b = 0; b < n; b += 8) {
    const typename Format::Block* eight = blocks + b;
    if (n - b < 8) {
      std::memset(rest, 0, sizeof(rest));
      std::memcpy(rest, eight, static_cast<size_t>(n - b) * sizeof(rest[0]));
      eight = rest;
    }
    fn(eight, b);
  }
}

template <class Format>
struct Dot32 {
  using Block = typename Format::Block;
  static constexpr ActFormat format{32, Format::is_signed ? 0 : 32, 0, false};
  static constexpr int most_tokens = 4, stream_tokens = 1;
  TANDEM_INLINE static size_t row_bytes(int64_t k) { return static_cast<size_t>(k) / 32 * sizeof(Block); }

  static constexpr int64_t k_step = 256;
  struct Step {
    Block blocks[8];
  };
  template <int T>
  struct Sums {
    __m256 acc[T][2];
    TANDEM_INLINE Sums() {
      for (int t = 0; t < T; ++t) acc[t][0] = acc[t][1] = _mm256_setzero_ps();
    }
    TANDEM_INLINE float total(int t) const { return sum_lanes(_mm256_add_ps(acc[t][0], acc[t][1])); }
  };

  // Per block and token: the integers of 32 columns to 8 int32 lanes, then one fma with the product of both
  // scales.
  template <int T>
  TANDEM_INLINE static void add(const Step& step, const ActToken (&x)[T], int64_t column, Sums<T>& sums) {
    const Block* blocks = step.blocks;
    auto& acc = sums.acc;
    const int64_t b = column / 32;
    const __m256 d = Format::scales(blocks);
    alignas(32) float scales[T][8];
    for (int t = 0; t < T; ++t) {
      _mm256_store_ps(scales[t], _mm256_mul_ps(d, _mm256_loadu_ps(x[t].scales + b)));
      if constexpr (!Format::is_signed) {
        acc[t][0] = _mm256_fmadd_ps(offsets_of<Format>(blocks, d), _mm256_loadu_ps(x[t].sums + b), acc[t][0]);
      }
    }
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const __m256i w = Format::quants(blocks[j]), w_abs = Format::is_signed ? _mm256_abs_epi8(w) : w;
      for (int t = 0; t < T; ++t) {
        const __m256i columns = load256(x[t].columns + column + 32 * j);
        const __m256i sum = dot_of_4(w_abs, Format::is_signed ? _mm256_sign_epi8(columns, w) : columns);
        acc[t][j % 2] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_broadcast_ss(&scales[t][j]), acc[t][j % 2]);
      }
    }
  }
};

// Scales (and offsets) of a strip's blocks, one row a lane.
template <class Format, class Chunk>
TANDEM_INLINE void pack_scales(const Strip& strip, int64_t k0, int64_t n_blocks, Chunk& to) {
  using Block = typename Format::Block;
  for (int p = 0; p < 2; ++p) {
    for (int64_t b = 0; b < n_blocks; b += 8) {
      __m256 d[8], offset[8];
      for (int r = 0; r < 8; ++r) {
        const Block* row = reinterpret_cast<const Block*>(strip.rows[8 * p + r]) + k0 / 32 + b;
        prefetch<_MM_HINT_T1>(row, strip.to_next, 8 * sizeof(Block));
        for_eight_blocks<Format>(row, n_blocks - b < 8 ? n_blocks - b : 8, [&](const Block* blocks, int64_t) {
          d[r] = Format::scales(blocks);
          if constexpr (Format::has_min) {
            const __m256 centre = _mm256_set1_ps(static_cast<float>(Format::centre));
            offset[r] = _mm256_fmadd_ps(centre, d[r], Format::mins(blocks));
          }
        });
      }
      transpose8(d);
      if constexpr (Format::has_min) transpose8(offset);
      for (int i = 0; i < 8; ++i) {
        _mm256_store_ps(to.scales[b + i][p], d[i]);
        if constexpr (Format::has_min) _mm256_store_ps(to.offsets[b + i][p], offset[i]);
      }
    }
  }
}

// Unsigned weights; with VNNI signed ones too, plus 128.
template <class Format>
struct BytePanel32 : BytePanelOf<32, Format::is_signed ? 128 : Format::centre, Format::has_min> {
  using Block = typename Format::Block;
  using typename BytePanelOf<32, Format::is_signed ? 128 : Format::centre, Format::has_min>::Chunk;
  static_assert(kVnni || !Format::is_signed);
  TANDEM_INLINE static size_t row_bytes(int64_t k) { return static_cast<size_t>(k) / 32 * sizeof(Block); }

  TANDEM_INLINE static void pack(const Strip& strip, int64_t k0, int64_t columns, Chunk& to) {
    pack_scales<Format>(strip, k0, columns / 32, to);
    for (int64_t b = 0; b < columns / 32; ++b) {
      for (int p = 0; p < 2; ++p) {
        __m256i v[8];
        for (int r = 0; r < 8; ++r) {
          const __m256i q =
              Format::quants(reinterpret_cast<const Block*>(strip.rows[8 * p + r])[k0 / 32 + b]);
          v[r] = Format::is_signed ? plus_128(q) : q;
        }
        transpose8(v);
        for (int g = 0; g < 8; ++g) store256(to.w[8 * b + g][p], v[g]);
      }
    }
  }
};

// Signed weights, whose products do not fit int16 sums: int16 panels. A group is 2 columns of 8 rows. A block
// costs 32 operations and 3 at its end, for 256 products: less than moving signs from the weights to the
// activations.
template <class Format>
struct WordPanel32 {
  using Block = typename Format::Block;
  static constexpr ActFormat format{32, 0, 0, true};
  static constexpr int most_tokens = 4;
  static constexpr int64_t k_columns = 512;
  struct alignas(64) Chunk {
    int16_t w[k_columns / 32][16][2][16];  // [block][group][half of the strip][8 rows x 2 columns]
    float scales[k_columns / 32][2][8];
  };
  TANDEM_INLINE static size_t row_bytes(int64_t k) { return static_cast<size_t>(k) / 32 * sizeof(Block); }

  TANDEM_INLINE static void pack(const Strip& strip, int64_t k0, int64_t columns, Chunk& to) {
    pack_scales<Format>(strip, k0, columns / 32, to);
    for (int64_t b = 0; b < columns / 32; ++b) {
      for (int p = 0; p < 2; ++p) {
        __m256i low[8], high[8];
        for (int r = 0; r < 8; ++r) {
          const __m256i q =
              Format::quants(reinterpret_cast<const Block*>(strip.rows[8 * p + r])[k0 / 32 + b]);
          low[r] = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(q));
          high[r] = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(q, 1));
        }
        transpose8(low);
        transpose8(high);
        for (int g = 0; g < 8; ++g) {
          store256(to.w[b][g][p], low[g]);
          store256(to.w[b][8 + g][p], high[g]);
        }
      }
    }
  }

  template <int T>
  TANDEM_INLINE static void tile(const Chunk& chunk, const ActToken (&x)[T], int64_t k0, int64_t columns,
                                 __m256 (&sums)[2][T]) {
    for (int t = 0; t < T; ++t) sums[0][t] = sums[1][t] = _mm256_setzero_ps();
    for (int64_t b = 0; b < columns / 32; ++b) {
      const int64_t xb = k0 / 32 + b;
      __m256i acc[2][T];
      for (int t = 0; t < T; ++t) acc[0][t] = acc[1][t] = _mm256_setzero_si256();
#pragma GCC unroll 16
      for (int g = 0; g < 16; ++g) {
        const __m256i w0 = load256(chunk.w[b][g][0]), w1 = load256(chunk.w[b][g][1]);
        for (int t = 0; t < T; ++t) {
          const __m256i column = broadcast_u32(x[t].columns + 64 * xb + 4 * g);
          add32(acc[0][t], _mm256_madd_epi16(w0, column));
          add32(acc[1][t], _mm256_madd_epi16(w1, column));
        }
      }
      for (int t = 0; t < T; ++t) {
        const __m256 scale = _mm256_broadcast_ss(x[t].scales + xb);
        for (int p = 0; p < 2; ++p) {
          const __m256 both = _mm256_mul_ps(scale, _mm256_load_ps(chunk.scales[b][p]));
          sums[p][t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[p][t]), both, sums[p][t]);
        }
      }
    }
  }
};

// As measured on a Zen 3 without VNNI, from memory, dot products against panels: Q4_0 and Q4_1 of 8 tokens 1.3 times as fast, of 12 1.0
// to 1.1; MXFP4 of 8 1.12, of 10 the same; Q5_0 and Q5_1 of 5 the same; Q8_0 of 8 1.27, of 12 1.04, of 16 0.97. With AVX-VNNI on an Emerald
// Rapids: Q4_0 and Q4_1 of 4 1.6 to 1.9, of 8 1.05 to 1.3, of 12 1.0; MXFP4 of 4 1.5, of 6 1.1, of 8 0.9 to 1.0; Q5_0, Q5_1 and Q8_0 of 4
// 1.0 to 1.1, of 5 0.7 to 0.9; IQ4_NL of 3 0.9.
template <class Format, int64_t panel_from = 5>
constexpr DtypeKernels byte_kernels = dtype_kernels<Dot32<Format>, BytePanel32<Format>>(panel_from);
template <class Format>
constexpr DtypeKernels nibble_kernels =
    dtype_kernels<DotBlocks<Format>, BytePanel32<Format>>(Format::most == 15 ? (kVnni ? 11 : 13) : (kVnni ? 7 : 9));
template <class Format>
[[maybe_unused]] constexpr DtypeKernels word_kernels = dtype_kernels<Dot32<Format>, WordPanel32<Format>>(13);
template <class Format>
constexpr DtypeKernels signed_kernels = [] {
  if constexpr (kVnni)
    return byte_kernels<Format, std::is_same_v<Format, IQ4_NL> ? 3 : 5>;
  else
    return word_kernels<Format>;
}();

}  // namespace

const DtypeKernels* block_kernels(DType dtype) {
  switch (dtype) {
    case DType::Q4_0: return &nibble_kernels<Q4_0>;
    case DType::Q4_1: return &nibble_kernels<Q4_1>;
    case DType::Q5_0: return &byte_kernels<Q5_0>;
    case DType::Q5_1: return &byte_kernels<Q5_1>;
    case DType::MXFP4: return &nibble_kernels<MXFP4>;
    case DType::Q8_0: return &signed_kernels<Q8_0>;
    case DType::IQ4_NL: return &signed_kernels<IQ4_NL>;
    default: return nullptr;
  }
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
