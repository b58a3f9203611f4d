// Products with weights in super-blocks of 256, for every format of linear_formats_k.h and linear_formats_grid.h.
#pragma once

#include <utility>

#include "cpu/avx2/linear_drive.h"
#include "cpu/avx2/linear_formats_k.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

template <class Format>
TANDEM_INLINE size_t super_row_bytes(int64_t k) {
  return static_cast<size_t>(k) / 256 * sizeof(typename Format::Block);
}

// Calls fn<I>() for the eight vectors of 32 columns of a super-block; I has to be a constant in the shifts.
template <class Fn>
TANDEM_INLINE void for_eighths(Fn&& fn) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (fn.template operator()<I>(), ...);
  }
  (std::make_integer_sequence<int, 8>{});
}

// Scales as int16, arranged so that word I of both halves are those of columns 32I..32I+15 and 32I+16...
template <class Format>
TANDEM_INLINE __m256i arrange_scales(__m128i scales) {
  if constexpr (Format::sub == 32) {
    return _mm256_broadcastsi128_si256(_mm_cvtepi8_epi16(scales));
  } else {
    const __m128i even_odd = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    return _mm256_cvtepi8_epi16(_mm_shuffle_epi8(scales, even_odd));
  }
}

template <int I>
TANDEM_INLINE __m256i broadcast_word(__m256i v) {
  return _mm256_shuffle_epi8(v, _mm256_set1_epi16(static_cast<short>(2 * I | (2 * I + 1) << 8)));
}

// Integers 8j.. of a vector of int8, as floats.
template <int J>
TANDEM_INLINE __m256 bytes_to_floats(__m128i v) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(J == 0 ? v : _mm_srli_si128(v, 8)));
}

template <class Format>
struct DotK {
  using Block = typename Format::Block;
  static constexpr ActFormat format{256, Format::is_signed ? 0 : Format::sub, 0, false};
  static constexpr int most_tokens = 4, stream_tokens = 1;
  TANDEM_INLINE static size_t row_bytes(int64_t k) { return super_row_bytes<Format>(k); }

  static constexpr int64_t k_step = 256;
  using Step = Block;
  template <int T>
  struct Sums {
    __m256 acc[T], offset_acc[T];
    TANDEM_INLINE Sums() {
      for (int t = 0; t < T; ++t) acc[t] = offset_acc[t] = _mm256_setzero_ps();
    }
    TANDEM_INLINE float total(int t) const { return sum_lanes(_mm256_add_ps(acc[t], offset_acc[t])); }
  };

  // Per super-block and token: 8 vectors of integers times their sub-blocks' scales summed in int32, one fma;
  // then the offsets (the centre among them) with the sums of the activations.
  template <int T>
  TANDEM_INLINE static void add(const Block& block, const ActToken (&x)[T], int64_t column, Sums<T>& sums) {
    const int64_t b = column / 256;
    const SubScales s = Format::scales(block);
    const __m256i scales = arrange_scales<Format>(s.scales);
    const auto prepared = Format::prepare(block);
    __m256i isum[T];
    for (int t = 0; t < T; ++t) isum[t] = _mm256_setzero_si256();
    for_eighths([&]<int I>() __attribute__((always_inline)) {
      const __m256i scale = broadcast_word<I>(scales);
      const auto columns = [&](int t) __attribute__((always_inline)) { return load256(x[t].columns + column + 32 * I); };
      if constexpr (Format::is_signed) {
        const SignedVector w = Format::template quants<I>(block, prepared);
        for (int t = 0; t < T; ++t) {
          add_scaled(isum[t], products(w.magnitude, _mm256_sign_epi8(columns(t), w.sign)), scale);
        }
      } else {
        const __m256i w = Format::template quants<I>(block);
        for (int t = 0; t < T; ++t) add_scaled(isum[t], products(w, columns(t)), scale);
      }
    });
    for (int t = 0; t < T; ++t) {
      sums.acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum[t]), _mm256_set1_ps(s.d * x[t].scales[b]), sums.acc[t]);
    }
    if constexpr (!Format::is_signed) add_offsets<T>(s, x, b, sums.offset_acc);
  }

  template <int T>
  TANDEM_INLINE static void add_offsets(const SubScales& s, const ActToken (&x)[T], int64_t b,
                                        __m256 (&acc)[T]) {
    constexpr int n = 256 / Format::sub;
    const __m128i offsets = Format::has_min ? s.offsets : s.scales;
    const __m256 factor =
        _mm256_set1_ps(Format::has_min ? s.offset_factor : s.d * -static_cast<float>(Format::centre));
    const __m256 low = _mm256_mul_ps(factor, bytes_to_floats<0>(offsets));
    for (int t = 0; t < T; ++t) acc[t] = _mm256_fmadd_ps(low, _mm256_loadu_ps(x[t].sums + n * b), acc[t]);
    if constexpr (n == 16) {
      const __m256 high = _mm256_mul_ps(factor, bytes_to_floats<1>(offsets));
      for (int t = 0; t < T; ++t)
        acc[t] = _mm256_fmadd_ps(high, _mm256_loadu_ps(x[t].sums + n * b + 8), acc[t]);
    }
  }
};

// The share of an eighth of half p of the strip. In the order of memory and into L1, instead of the next chunk of each row into L2,
// it made Q4_K from memory 1.1 to 1.25 times as fast on a Zen 3, for 4 to 32 tokens; but not blocks of 32.
template <int I, class Block>
TANDEM_INLINE void fetch_behind(const Strip& strip, int64_t b, int p) {
  prefetch<_MM_HINT_T0>(strip.behind, (16 * b + 8 * p + I) * static_cast<int64_t>(sizeof(Block)), sizeof(Block));
}

// int8 numbers of 8 rows' sub-blocks 8j.. to [sub-block][8 rows] in 32-bit lanes.
template <int J>
TANDEM_INLINE void transpose_bytes(const __m128i (&rows)[8], __m256i (&to)[8]) {
  for (int r = 0; r < 8; ++r) to[r] = _mm256_cvtepi8_epi32(J == 0 ? rows[r] : _mm_srli_si128(rows[r], 8));
  transpose8(to);
}

// How a sub-block's sums are multiplied by its scale: in int16 lanes of two columns, each times its half of a pair of scales; in
// int32 lanes whose values fit int16, times a pair of which one is 0; or in int32 lanes.
enum class Scaling { pairs, low_halves, int32 };

// Unsigned weights; with VNNI signed ones too, plus 128. A group is 4 columns of 8 rows. Without VNNI, int16 lanes sum as many
// groups as fit, else int32 lanes those of a sub-block; the whole super-block is summed in int32.
template <class Format>
struct BytePanelK {
  using Block = typename Format::Block;
  static_assert(kVnni || !Format::is_signed);
  static constexpr ActFormat format{256, Format::sub, Format::is_signed ? 128 : Format::centre, false};
  static constexpr int most_tokens = 4;
  static constexpr int64_t k_columns = 1024;
  static constexpr int n_subs = 256 / Format::sub;
  static constexpr int sub_groups = Format::sub / 4;
  static constexpr int fitting_groups = 32767 / (Format::most * 127 * (kVnni ? 4 : 2));
  static constexpr int groups =
      kVnni || fitting_groups >= sub_groups ? sub_groups : 4;  // summed before scaling
  static_assert(kVnni || fitting_groups >= groups);
  static constexpr Scaling scaling = !kVnni                         ? Scaling::pairs
                                     : fitting_groups >= sub_groups ? Scaling::low_halves
                                                                    : Scaling::int32;
  struct alignas(64) Chunk {
    uint8_t w[k_columns / 4][2][32];                // [group][half of the strip][8 rows x 4 columns]
    int32_t scales[k_columns / Format::sub][2][8];  // as int16: each twice, or one and 0; or as int32
    float offsets[Format::has_min ? k_columns / Format::sub : 1][2][8];
    float d[k_columns / 256][2][8];
  };
  TANDEM_INLINE static size_t row_bytes(int64_t k) { return super_row_bytes<Format>(k); }

  TANDEM_INLINE static void pack(const Strip& strip, int64_t k0, int64_t columns, Chunk& to) {
    for (int64_t b = 0; b < columns / 256; ++b) {
      for (int p = 0; p < 2; ++p) {
        const Block* blocks[8];
        typename Format::Prepared prepared[8];
        for (int r = 0; r < 8; ++r) {
          blocks[r] = reinterpret_cast<const Block*>(strip.rows[8 * p + r]) + k0 / 256 + b;
          prepared[r] = Format::prepare(*blocks[r]);
        }
        for_eighths([&]<int I>() __attribute__((always_inline)) {
          fetch_behind<I, Block>(strip, b, p);
          __m256i v[8];
          for (int r = 0; r < 8; ++r) v[r] = unsigned_quants<I>(*blocks[r], prepared[r]);
          transpose8(v);
          for (int g = 0; g < 8; ++g) store256(to.w[64 * b + 8 * I + g][p], v[g]);
        });
        pack_scales(blocks, b, p, to);
      }
    }
  }

  template <int I>
  TANDEM_INLINE static __m256i unsigned_quants(const Block& block,
                                               const typename Format::Prepared& prepared) {
    if constexpr (Format::is_signed) {
      const SignedVector w = Format::template quants<I>(block, prepared);
      return plus_128(_mm256_sign_epi8(w.magnitude, w.sign));
    } else {
      return Format::template quants<I>(block);
    }
  }

  TANDEM_INLINE static __m256i arranged(__m256i scales) {
    switch (scaling) {
      case Scaling::pairs: return _mm256_blend_epi16(scales, _mm256_slli_epi32(scales, 16), 0xaa);
      case Scaling::low_halves: return _mm256_and_si256(scales, _mm256_set1_epi32(0xffff));
      case Scaling::int32: break;
    }
    return scales;
  }

  TANDEM_INLINE static void pack_scales(const Block* const (&blocks)[8], int64_t b, int p, Chunk& to) {
    __m128i scales[8], offsets[8];
    alignas(32) float offset_factors[8];
    for (int r = 0; r < 8; ++r) {
      const SubScales s = Format::scales(*blocks[r]);
      scales[r] = s.scales;
      offsets[r] = s.offsets;
      offset_factors[r] = s.offset_factor;
      to.d[b][p][r] = s.d;
    }
    const auto write = [&]<int J>() {
      __m256i v[8];
      transpose_bytes<J>(scales, v);
      for (int i = 0; i < 8; ++i) store256(to.scales[n_subs * b + 8 * J + i][p], arranged(v[i]));
      if constexpr (Format::has_min) {
        transpose_bytes<J>(offsets, v);
        for (int i = 0; i < 8; ++i) {
          const __m256 offset = _mm256_mul_ps(_mm256_cvtepi32_ps(v[i]), _mm256_load_ps(offset_factors));
          _mm256_store_ps(to.offsets[n_subs * b + 8 * J + i][p], offset);
        }
      }
    };
    write.template operator()<0>();
    if constexpr (n_subs == 16) write.template operator()<1>();
  }

  template <int T>
  TANDEM_INLINE static void tile(const Chunk& chunk, const ActToken (&x)[T], int64_t k0, int64_t columns,
                                 __m256 (&sums)[2][T]) {
    for (int t = 0; t < T; ++t) sums[0][t] = sums[1][t] = _mm256_setzero_ps();
    for (int64_t b = 0; b < columns / 256; ++b) {
      const int64_t xb = k0 / 256 + b;
      __m256i isum[2][T];
      for (int t = 0; t < T; ++t) isum[0][t] = isum[1][t] = _mm256_setzero_si256();
      for (int s = 0; s < n_subs; ++s) add_sub_block<T>(chunk, x, n_subs * b + s, n_subs * xb + s, isum);
      if constexpr (Format::has_min) {
        for (int s = 0; s < n_subs; ++s) {
          const __m256 w0 = _mm256_load_ps(chunk.offsets[n_subs * b + s][0]);
          const __m256 w1 = _mm256_load_ps(chunk.offsets[n_subs * b + s][1]);
          for (int t = 0; t < T; ++t) {
            const __m256 sum = _mm256_broadcast_ss(x[t].sums + n_subs * xb + s);
            sums[0][t] = _mm256_fmadd_ps(w0, sum, sums[0][t]);
            sums[1][t] = _mm256_fmadd_ps(w1, sum, sums[1][t]);
          }
        }
      }
      for (int t = 0; t < T; ++t) {
        const __m256 scale = _mm256_broadcast_ss(x[t].scales + xb);
        for (int p = 0; p < 2; ++p) {
          const __m256 both = _mm256_mul_ps(scale, _mm256_load_ps(chunk.d[b][p]));
          sums[p][t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum[p][t]), both, sums[p][t]);
        }
      }
    }
  }

  TANDEM_INLINE static void add_sums(__m256i& isum, __m256i sums, __m256i scale) {
    if constexpr (scaling == Scaling::int32) {
      add32(isum, _mm256_mullo_epi32(sums, scale));
    } else {
      add_scaled(isum, sums, scale);
    }
  }

  // Sub-block s of the chunk, xs of the token.
  template <int T>
  TANDEM_INLINE static void add_sub_block(const Chunk& chunk, const ActToken (&x)[T], int64_t s, int64_t xs,
                                          __m256i (&isum)[2][T]) {
    const __m256i scale0 = load256(chunk.scales[s][0]), scale1 = load256(chunk.scales[s][1]);
#pragma GCC unroll 2
    for (int g0 = 0; g0 < sub_groups; g0 += groups) {
      __m256i acc[2][T];
      for (int t = 0; t < T; ++t) {
        const __m256i start =
            format.centre == 0 ? _mm256_setzero_si256() : _mm256_set1_epi32(x[t].centres[xs]);
        acc[0][t] = acc[1][t] = start;
      }
#pragma GCC unroll 8
      for (int g = g0; g < g0 + groups; ++g) {
        const __m256i w0 = load256(chunk.w[sub_groups * s + g][0]),
                      w1 = load256(chunk.w[sub_groups * s + g][1]);
        for (int t = 0; t < T; ++t) {
          const __m256i column = broadcast_u32(x[t].columns + Format::sub * xs + 4 * g);
          add_dot(acc[0][t], w0, column);
          add_dot(acc[1][t], w1, column);
        }
      }
      for (int t = 0; t < T; ++t) {
        add_sums(isum[0][t], acc[0][t], scale0);
        add_sums(isum[1][t], acc[1][t], scale1);
      }
    }
  }
};

// Signed weights without VNNI: the sub-block's scale goes into the panel, as int16; a super-block is summed in int32.
template <class Format>
struct WordPanelK {
  using Block = typename Format::Block;
  static constexpr ActFormat format{256, 0, 0, true};
  static constexpr int most_tokens = 4;
  static constexpr int64_t k_columns = 512;
  struct alignas(64) Chunk {
    int16_t w[k_columns / 2][2][16];  // [group][half of the strip][8 rows x 2 columns]
    float d[k_columns / 256][2][8];
  };
  TANDEM_INLINE static size_t row_bytes(int64_t k) { return super_row_bytes<Format>(k); }

  TANDEM_INLINE static void pack(const Strip& strip, int64_t k0, int64_t columns, Chunk& to) {
    for (int64_t b = 0; b < columns / 256; ++b) {
      for (int p = 0; p < 2; ++p) {
        const Block* blocks[8];
        __m256i scales[8];
        typename Format::Prepared prepared[8];
        for (int r = 0; r < 8; ++r) {
          blocks[r] = reinterpret_cast<const Block*>(strip.rows[8 * p + r]) + k0 / 256 + b;
          const SubScales s = Format::scales(*blocks[r]);
          scales[r] = arrange_scales<Format>(s.scales);
          to.d[b][p][r] = s.d;
          prepared[r] = Format::prepare(*blocks[r]);
        }
        for_eighths([&]<int I>() __attribute__((always_inline)) {
          fetch_behind<I, Block>(strip, b, p);
          __m256i low[8], high[8];
          for (int r = 0; r < 8; ++r) {
            const SignedVector w = Format::template quants<I>(*blocks[r], prepared[r]);
            const __m256i q = _mm256_sign_epi8(w.magnitude, w.sign), scale = broadcast_word<I>(scales[r]);
            // The scale of columns 32I..32I+15 is in its low half, that of the next 16 in its high one.
            const __m256i scale_low =
                Format::sub == 32 ? scale : _mm256_permute2x128_si256(scale, scale, 0x00);
            const __m256i scale_high =
                Format::sub == 32 ? scale : _mm256_permute2x128_si256(scale, scale, 0x11);
            low[r] = _mm256_mullo_epi16(_mm256_cvtepi8_epi16(_mm256_castsi256_si128(q)), scale_low);
            high[r] = _mm256_mullo_epi16(_mm256_cvtepi8_epi16(_mm256_extracti128_si256(q, 1)), scale_high);
          }
          transpose8(low);
          transpose8(high);
          for (int g = 0; g < 8; ++g) {
            store256(to.w[128 * b + 16 * I + g][p], low[g]);
            store256(to.w[128 * b + 16 * I + 8 + g][p], high[g]);
          }
        });
      }
    }
  }

  template <int T>
  TANDEM_INLINE static void tile(const Chunk& chunk, const ActToken (&x)[T], int64_t k0, int64_t columns,
                                 __m256 (&sums)[2][T]) {
    for (int t = 0; t < T; ++t) sums[0][t] = sums[1][t] = _mm256_setzero_ps();
    for (int64_t b = 0; b < columns / 256; ++b) {
      const int64_t xb = k0 / 256 + b;
      __m256i isum[2][T];
      for (int t = 0; t < T; ++t) isum[0][t] = isum[1][t] = _mm256_setzero_si256();
      for (int g0 = 0; g0 < 128; g0 += 16) {
#pragma GCC unroll 16
        for (int g = g0; g < g0 + 16; ++g) {
          const __m256i w0 = load256(chunk.w[128 * b + g][0]), w1 = load256(chunk.w[128 * b + g][1]);
          for (int t = 0; t < T; ++t) {
            const __m256i column = broadcast_u32(x[t].columns + 512 * xb + 4 * g);
            add32(isum[0][t], _mm256_madd_epi16(w0, column));
            add32(isum[1][t], _mm256_madd_epi16(w1, column));
          }
        }
      }
      for (int t = 0; t < T; ++t) {
        const __m256 scale = _mm256_broadcast_ss(x[t].scales + xb);
        for (int p = 0; p < 2; ++p) {
          const __m256 both = _mm256_mul_ps(scale, _mm256_load_ps(chunk.d[b][p]));
          sums[p][t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum[p][t]), both, sums[p][t]);
        }
      }
    }
  }
};

template <class Format>
constexpr DtypeKernels byte_kernels_k(int64_t panel_from) {
  return dtype_kernels<DotK<Format>, BytePanelK<Format>>(panel_from);
}
template <class Format>
constexpr DtypeKernels signed_kernels_k(int64_t panel_from) {
  if constexpr (kVnni)
    return byte_kernels_k<Format>(panel_from);
  else
    return dtype_kernels<DotK<Format>, WordPanelK<Format>>(panel_from);
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
