// Weights of 16 rows as pairs of bf16, the form that tiles are loaded from: lane r of vector c holds columns 2c and
// 2c + 1 of row r. A sink for the code that unpacks quantized strips, and the same for floats.
//
// A byte becomes a float by its place in the mantissa of 256.0, without a conversion; one multiply-add subtracts the
// 256, applies scale, offset and min; two such vectors round to one of pairs. About 10 operations for 32 weights.
#pragma once

#include "cpu/amx/tiles.h"
#include "cpu/avx512/linear_layout.h"
#include "cpu/avx512/linear_simd.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// 256 plus byte b of every lane.
inline constexpr float kByteBase = 256.0f;
template <int b>
TANDEM_INLINE __m512 based_byte(__m512i v) {
  constexpr int shift = 15 - 8 * b;
  __m512i at15;
  if constexpr (shift >= 0) {
    at15 = _mm512_slli_epi32(v, static_cast<unsigned>(shift));
  } else {
    at15 = _mm512_srli_epi32(v, static_cast<unsigned>(-shift));
  }
  const __m512i base = _mm512_castps_si512(_mm512_set1_ps(kByteBase));
  return _mm512_castsi512_ps(
      _mm512_ternarylogic_epi32(at15, _mm512_set1_epi32(0xff << 15), base, 0xea));  // (a & b) | c
}

// One unit of columns (see Shape): w = scale * (byte - offset) + min of a block of 32, - dmin * min of a super-block. The order of
// columns is as they are or Order::fours, of which two vectors have the two columns of each pair.
template <Shape S, Order order = Order::columns>
struct PairSink {
  static constexpr int kBytes = S.sub / 4,
                       kStep = kBytes + 1;  // vectors of a sub-block: bytes, then the scale
  static constexpr int kPart = S.mins > 1 ? S.unit / S.mins : S.sub;  // columns that share scale and min

  __m512i* panel;  // [S.unit / 2]
  __m512 scale[S.subs()];
  __m512 base[S.unit / kPart];  // what is added to scale * (256 + byte)
  __m512 min_or_dmin;
  __m512i mins[S.mins > 1 ? S.mins / 2 : 1];  // pairs of 16-bit integers
  __m512i even;                               // of fours, the vector before

  TANDEM_INLINE explicit PairSink(__m512i* p) : panel(p) {}

  TANDEM_INLINE void pause() {}
  TANDEM_INLINE void finish() {}
  template <int i>
  TANDEM_INLINE PairSink unit() const {
    return PairSink(panel + i * (S.unit / 2));
  }

  template <int at>
  TANDEM_INLINE void put(__m512i v) {
    constexpr int rest = at - S.subs() * kStep;
    if constexpr (rest >= 0 && S.mins > 1 && rest < S.mins / 2) {
      mins[rest] = v;
    } else if constexpr (rest >= 0) {
      min_or_dmin = _mm512_castsi512_ps(v);
    } else if constexpr (at % kStep == kBytes) {
      scale[at / kStep] = _mm512_castsi512_ps(v);
    } else {
      put_bytes<at / kStep, at / kStep * S.sub + at % kStep * 4>(v);
    }
  }

  // Four columns, from `column` of the unit on, of sub-block s.
  template <int s, int column>
  TANDEM_INLINE void put_bytes(__m512i v) {
    constexpr int part = column / kPart;
    if constexpr (column % kPart == 0) base[part] = base_of<s, part>();
    const auto weight = [&](__m512i of, auto b) __attribute__((always_inline)) {
      return _mm512_fmadd_ps(based_byte<decltype(b)::value>(of), scale[s], base[part]);
    };
    if constexpr (order == Order::columns) {
      _mm512_store_si512(panel + column / 2, pack_pairs(weight(v, Index<0>{}), weight(v, Index<1>{})));
      _mm512_store_si512(panel + column / 2 + 1, pack_pairs(weight(v, Index<2>{}), weight(v, Index<3>{})));
    } else if constexpr (column / 4 % 2 == 0) {
      even = v;
    } else {
      unroll<4>([&](auto b) __attribute__((always_inline)) {  // columns 4b and 4b + 1 of 16, or the two after them
        constexpr int first = column / 16 * 16 + 4 * decltype(b)::value + column % 16 / 8 * 2;
        _mm512_store_si512(panel + first / 2, pack_pairs(weight(even, b), weight(v, b)));
      });
    }
  }

  template <int s, int part>
  TANDEM_INLINE __m512 base_of() const {
    const __m512 factor = _mm512_set1_ps(-(kByteBase + static_cast<float>(S.offset)));
    if constexpr (S.mins == 0) return _mm512_mul_ps(scale[s], factor);
    if constexpr (S.mins == 1) return _mm512_fmadd_ps(scale[s], factor, min_or_dmin);
    if constexpr (S.mins > 1) {
      const __m512i two = mins[part / 2];
      const __m512i one =
          part % 2 == 0 ? _mm512_and_si512(two, _mm512_set1_epi32(0xffff)) : _mm512_srli_epi32(two, 16);
      return _mm512_fnmadd_ps(_mm512_cvtepi32_ps(one), min_or_dmin, _mm512_mul_ps(scale[s], factor));
    }
  }
};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
