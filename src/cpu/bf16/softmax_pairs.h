// The running softmax of attention of many queries, whose weights are pairs of bf16. Included after vec.h.
//
// The maximum is a whole power of two, at or above the weights' greatest. So a weight's digits, and with them its rounding
// to bf16, do not depend on what other positions a call sees: attention cut into parts rounds as attention over the whole
// does. Sums are of rounded weights, so a position that takes all of the weight is not off by its rounding.
#pragma once

#include "cpu/avx512/bf16_pairs.h"
#include "cpu/simd/attention_panels.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

inline constexpr float kLog2E = 1.44269504f, kLn2 = 0.69314718f;

// Where the state of 16 queries lies. max: log2 of the maximum, whole; factor: how to scale older sums.
struct RunningSoftmax {
  float *max, *sum, *factor;
};

// 2^(log2(e) s - max), to 3e-6, a thousandth of what the rounding to bf16 does. NaN gives NaN, -inf 0.
TANDEM_INLINE Vec weight_of(Vec s, Vec max) {
  const Vec x = vmax(set1(-1e30f), s * set1(kLog2E));
  const Vec n = nearest(x), r = x - n;
  Vec p = set1(0.0095701019f);  // 2^r for |r| <= 1 / 2, our own minimax fit
  p = fma(p, r, set1(0.0559178603f));
  p = fma(p, r, set1(0.2402474483f));
  p = fma(p, r, set1(0.6931218147f));
  p = fma(p, r, set1(0.9999992614f));
  return times_power_of_2(p, n - max);
}

// Turns the scores of 16 queries and n positions (n even), whose rows are ld apart, into weights: put(i, pairs) gets
// those of positions 2 * i and 2 * i + 1.
template <class Put>
TANDEM_INLINE void softmax_to_pairs(const float* s, int64_t ld, int64_t n, const RunningSoftmax& r,
                                    const Put& put) {
  const Vec old = load(r.max), greatest = max_of_rows(s, ld, n, set1(kNothing)) * set1(kLog2E);
  const Vec max = vmax(_mm512_roundscale_ps(greatest, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC), old);
  const Vec m = subtractable(max), factor = times_power_of_2(set1(1.0f), old - m);
  const __m512i ones = iset1(0x3f803f80);
  Vec sum = load(r.sum) * factor;
  for (int64_t i = 0; i < n / 2; ++i) {
    const float* two = s + 2 * i * ld;
    const __m512i pairs = pack_pairs(weight_of(load(two), m), weight_of(load(two + ld), m));
    put(i, pairs);
    sum = _mm512_dpbf16_ps(sum, (__m512bh)pairs, (__m512bh)ones);
  }
  store(r.max, max);
  store(r.sum, sum);
  store(r.factor, factor);
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
