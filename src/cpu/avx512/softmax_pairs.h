// The softmax of attention of many queries, with weights as pairs of bf16. Included after vec.h.
#pragma once

#include "cpu/avx512/bf16_pairs.h"
#include "cpu/simd/attention_panels.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// Where the running softmax of 16 queries lies.
struct RunningSoftmax {
  float *max, *sum, *factor;
};

// Turns the scores of 16 queries and n positions (n even), whose rows are ld apart, into weights: put(i, pairs) gets
// those of positions 2 * i and 2 * i + 1. The sum is of weights before they are rounded.
template <class Put>
TANDEM_INLINE void softmax_to_pairs(const float* s, int64_t ld, int64_t n, const RunningSoftmax& r,
                                    const Put& put) {
  const Vec old = load(r.max), max = max_of_rows(s, ld, n, old);
  const Vec m = subtractable(max), factor = vexp_bounded(old - m);
  Vec sum = load(r.sum) * factor;
  for (int64_t i = 0; i < n / 2; ++i) {
    const float* two = s + 2 * i * ld;
    const Vec even = vexp_bounded(load(two) - m), odd = vexp_bounded(load(two + ld) - m);
    put(i, pack_pairs(even, odd));
    sum = sum + (even + odd);
  }
  store(r.max, max);
  store(r.sum, sum);
  store(r.factor, factor);
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
