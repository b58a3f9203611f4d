// Where unpacked weights go (linear_unpack.h): into a panel in memory, or directly into products with one
// token.
//
// The second is for decode. It stores and reloads nothing, and unpacking and multiplying, which wait on
// different resources, mix in the instruction window.
#pragma once

#include "cpu/avx512/linear_layout.h"
#include "cpu/avx512/linear_tile.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// Prefetches weights used soon, n_bytes at each pause of the unpacking, to spread the requests to memory. Into L2, because
// L1's line buffers are few. Addresses past the end of the weights do no harm.
template <size_t n_bytes>
struct Ahead {
  const std::byte* from;

  TANDEM_INLINE void fetch() {
    unroll<(n_bytes + 63) / 64>([&](auto i) __attribute__((always_inline)) {
      _mm_prefetch(reinterpret_cast<const char*>(from + 64 * i.value), _MM_HINT_T1);
    });
    from += n_bytes;
  }
};

// The same with a number of bytes that is known when it runs.
struct SomeAhead {
  const std::byte* from;
  size_t n_bytes;

  TANDEM_INLINE void fetch() {
    fetch_into_l2(from, n_bytes);
    from += n_bytes;
  }
};

// One unit of a panel.
template <Shape S, class AheadOf>
struct PanelSink {
  __m512i* panel;
  AheadOf& ahead;

  TANDEM_INLINE void pause() { ahead.fetch(); }
  template <int at>
  TANDEM_INLINE void put(__m512i v) {
    _mm512_store_si512(panel + at, v);
  }
  template <int i>
  TANDEM_INLINE PanelSink unit() const {
    return {panel + i * S.unit_vectors(), ahead};
  }
  TANDEM_INLINE void finish() {}
};

// One unit of columns times one token; `sum` is the 16 rows' result so far. `args` is where the group of
// units starts.
template <Shape S, class AheadOf, int i_unit = 0>
struct DotSink {
  static constexpr int kBytes = S.sub / 4,
                       kStep = kBytes + 1;              // vectors of a sub-block: bytes, then the scale
  static constexpr int kChains = S.sub == 256 ? 4 : 1;  // sums in parallel: vpdpbusd takes 5 cycles
  const TileArgs& args;
  AheadOf& ahead;
  __m512& sum;
  __m512 scale[S.subs()];
  __m512i acc[S.subs()][kChains];
  __m512 part = _mm512_setzero_ps();  // of a super-block
  __m512i min_acc = _mm512_setzero_si512();
  __m512 dmin;

  TANDEM_INLINE DotSink(const TileArgs& a, AheadOf& h, __m512& s) : args(a), ahead(h), sum(s) {}

  TANDEM_INLINE void pause() { ahead.fetch(); }
  template <int i>
  TANDEM_INLINE DotSink<S, AheadOf, i> unit() const {
    return {args, ahead, sum};
  }

  template <int at>
  TANDEM_INLINE void put(__m512i v) {
    if constexpr (at >= S.subs() * kStep) {
      put_min<at - S.subs() * kStep>(v);
    } else if constexpr (at % kStep == kBytes) {
      scale[at / kStep] = _mm512_castsi512_ps(v);
    } else {
      put_bytes<at / kStep, at % kStep>(v);
    }
  }

  // Four columns of sub-block s.
  template <int s, int i>
  TANDEM_INLINE void put_bytes(__m512i v) {
    __m512i& chain = acc[s][i % kChains];
    if constexpr (i == 0 && S.offset != 0) {
      chain = _mm512_set1_epi32(args.start[i_unit * S.subs() + s]);
    } else if constexpr (i < kChains) {
      chain = _mm512_setzero_si512();
    }
    chain = dot_u8s8<S.wide>(chain, v, broadcast(args.q + i_unit * (S.unit / 4) + s * kBytes + i));
    if constexpr (i == kBytes - 1) finish_sub<s>();
  }

  template <int s>
  TANDEM_INLINE void finish_sub() {
    unroll<kChains - 1>([&](auto i) __attribute__((always_inline)) {
      acc[s][0] = _mm512_add_epi32(acc[s][0], acc[s][1 + i.value]);
    });
    const __m512 dot = _mm512_cvtepi32_ps(acc[s][0]);
    if constexpr (S.unit == 32) {
      sum = _mm512_fmadd_ps(dot, _mm512_mul_ps(scale[s], _mm512_set1_ps(args.scale[i_unit])), sum);
    } else {
      part = _mm512_fmadd_ps(dot, scale[s], part);
    }
  }

  template <int i>
  TANDEM_INLINE void put_min(__m512i v) {
    if constexpr (S.mins == 1) {
      sum = _mm512_fmadd_ps(_mm512_castsi512_ps(v), _mm512_set1_ps(args.min_scale[i_unit]), sum);
    } else if constexpr (i < S.mins / 2) {
      min_acc = dot_i16(min_acc, v, broadcast(args.sums + i));
    } else {
      dmin = _mm512_castsi512_ps(v);
    }
  }

  TANDEM_INLINE void finish() {
    if constexpr (S.unit == 32) return;
    if constexpr (S.mins > 1) part = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(min_acc), dmin, part);
    sum = _mm512_fmadd_ps(part, _mm512_set1_ps(args.scale[0]), sum);
  }
};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
