// The inner kernel: a panel of 16 weight rows times a tile of T tokens, all in registers.
//
// Per 4 columns one load of the panel and T vpdpbusd with the activations broadcast from memory. vpdpbusd
// runs two a cycle on the ports that the float conversions need too, so the floor is set by what a scale
// costs: of 32 columns 8 products and 3 float operations (convert, join the scales, accumulate) per token
// with a scale each, 8 and 2 with a super-block's; 4 and 2 for Q6_K's sub-blocks of 16; 64 and 3 for Q2_K and
// Q3_K. Loads (T + 1 for T products) stay just below two a cycle.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "cpu/avx512/linear_format.h"
#include "cpu/avx512/linear_layout.h"
#include "cpu/avx512/linear_simd.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

TANDEM_INLINE __m512i broadcast(const uint32_t* p) {
  return _mm512_set1_epi32(static_cast<int>(*p));
}

// acc[t] = start of the integer sums, then the products of `columns` columns.
template <Shape S, int T, int columns>
TANDEM_INLINE void dot_columns(const __m512i*& panel, const uint32_t*& q, const int32_t*& start,
                               __m512i (&acc)[T]) {
  unroll<T>([&](auto t) __attribute__((always_inline)) {
    acc[t.value] = S.offset == 0 ? _mm512_setzero_si512() : _mm512_set1_epi32(start[t.value]);
  });
  const auto four_columns = [&]() __attribute__((always_inline)) {
    const __m512i w = _mm512_load_si512(panel++);
    unroll<T>([&](auto t) __attribute__((always_inline)) {
      acc[t.value] = dot_u8s8<S.wide>(acc[t.value], w, broadcast(q + t.value));
    });
    q += T;
  };
  // Not all 256 columns at once, but enough that the compiler's register shuffling between rounds does not
  // count.
  constexpr int at_once = std::min(columns, kMaxTile < 12 ? 16 : 32);
  for (int i = 0; i < columns / at_once; ++i) {
    unroll<at_once / 4>([&](auto) __attribute__((always_inline)) { four_columns(); });
  }
  if constexpr (S.offset != 0) start += T;
}

// Units of 32 columns with an activation scale, and one or two of the weights.
template <Shape S, int T>
void tile_simple(const TileArgs& args) {
  const __m512i* panel = args.panel;
  const uint32_t* q = args.q;
  const int32_t* start = args.start;
  const float* scale = args.scale;
  const float* min_scale = args.min_scale;
  const std::byte* ahead = args.ahead;
  __m512 sum[T];
  unroll<T>([&](auto t)
                __attribute__((always_inline)) { sum[t.value] = _mm512_loadu_ps(args.acc + 16 * t.value); });
  for (int64_t b = 0; b < args.n_units; ++b) {
    unroll<S.subs()>([&](auto) __attribute__((always_inline)) {
      __m512i acc[T];
      fetch_into_l2(ahead, args.ahead_bytes);
      ahead += args.ahead_bytes;
      dot_columns<S, T, S.sub>(panel, q, start, acc);
      const __m512 w_scale = _mm512_load_ps(reinterpret_cast<const float*>(panel++));
      unroll<T>([&](auto t) __attribute__((always_inline)) {
        const __m512 both = _mm512_mul_ps(w_scale, _mm512_set1_ps(scale[t.value]));
        sum[t.value] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[t.value]), both, sum[t.value]);
      });
    });
    scale += T;
    if constexpr (S.mins != 0) {
      const __m512 min = _mm512_load_ps(reinterpret_cast<const float*>(panel++));
      unroll<T>([&](auto t) __attribute__((always_inline)) {
        sum[t.value] = _mm512_fmadd_ps(min, _mm512_set1_ps(min_scale[t.value]), sum[t.value]);
      });
      min_scale += T;
    }
  }
  unroll<T>([&](auto t)
                __attribute__((always_inline)) { _mm512_storeu_ps(args.acc + 16 * t.value, sum[t.value]); });
}

// Super-blocks of 256 columns: the sub-blocks' sums meet in `part`, which the activation's scale multiplies
// once.
template <Shape S, int T>
void tile_super(const TileArgs& args) {
  const __m512i* panel = args.panel;
  const uint32_t* q = args.q;
  const int32_t* start = args.start;
  const float* scale = args.scale;
  const uint32_t* sums = args.sums;
  const std::byte* ahead = args.ahead;
  for (int64_t b = 0; b < args.n_units; ++b) {
    __m512i acc[T];
    __m512 part[T];
    unroll<T>([&](auto t) __attribute__((always_inline)) { part[t.value] = _mm512_setzero_ps(); });
    for (int s = 0; s < S.subs(); ++s) {
      fetch_into_l2(ahead, args.ahead_bytes);
      ahead += args.ahead_bytes;
      dot_columns<S, T, S.sub>(panel, q, start, acc);
      const __m512 w_scale = _mm512_load_ps(reinterpret_cast<const float*>(panel++));
      unroll<T>([&](auto t) __attribute__((always_inline)) {
        part[t.value] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[t.value]), w_scale, part[t.value]);
      });
    }
    if constexpr (S.mins != 0) {
      unroll<T>([&](auto t) __attribute__((always_inline)) { acc[t.value] = _mm512_setzero_si512(); });
      unroll<S.mins / 2>([&](auto) __attribute__((always_inline)) {
        const __m512i mins = _mm512_load_si512(panel++);
        unroll<T>([&](auto t) __attribute__((always_inline)) {
          acc[t.value] = dot_i16(acc[t.value], mins, broadcast(sums + t.value));
        });
        sums += T;
      });
      const __m512 dmin = _mm512_load_ps(reinterpret_cast<const float*>(panel++));
      unroll<T>([&](auto t) __attribute__((always_inline)) {
        part[t.value] = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(acc[t.value]), dmin, part[t.value]);
      });
    }
    unroll<T>([&](auto t) __attribute__((always_inline)) {
      float* to = args.acc + 16 * t.value;
      _mm512_storeu_ps(to,
                       _mm512_fmadd_ps(part[t.value], _mm512_set1_ps(scale[t.value]), _mm512_loadu_ps(to)));
    });
    scale += T;
  }
}

template <Shape S, int T>
constexpr TileKernel tile_kernel() {
  if constexpr (S.unit == 32) {
    return tile_simple<S, T>;
  } else {
    return tile_super<S, T>;
  }
}

// By the number of tokens in the tile.
template <Shape S>
struct TileKernels {
  template <int... T>
  static constexpr std::array<TileKernel, kMaxTile + 1> all(std::integer_sequence<int, T...>) {
    return {nullptr, tile_kernel<S, T + 1>()...};
  }
  static constexpr std::array<TileKernel, kMaxTile + 1> by_tokens =
      all(std::make_integer_sequence<int, kMaxTile>{});
};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
