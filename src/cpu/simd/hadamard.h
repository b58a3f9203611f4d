// The Hadamard transform for every vector ISA. Included after the ISA's vec.h. Sums are those of the reference
// (graph/hadamard.h), bit for bit.
#pragma once

#include <cstdint>

#include "graph/hadamard.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// One stride of the transform, of neighbours: sums go to the first half, differences to the second. So the pairs of the next
// stride are neighbours too, and after the last one all is in order again.
TANDEM_INLINE void hadamard_step(const float* from, float* to, int64_t width, Vec scale) {
  float* differences = to + width / 2;
  for (int64_t i = 0; i < width / 2; i += kLanes) {
    const Pairs p = load_pairs(from + 2 * i);
    store(to + i, (p.even + p.odd) * scale);
    store(differences + i, (p.even - p.odd) * scale);
  }
}

void hadamard(float* x, int64_t width, int64_t n) {
  if (width < 2 * kLanes) return tandem::hadamard(x, width, n);
  const Vec one = set1(1.0f), scale = set1(hadamard_scale(width));
  alignas(64) float turns[2][kMaxHadamard];
  for (float* run = x; run < x + n; run += width) {
    const float* from = run;
    int next = 0;
    for (int64_t stride = 1; stride < width / 2; stride *= 2, next ^= 1) {
      hadamard_step(from, turns[next], width, one);
      from = turns[next];
    }
    hadamard_step(from, run, width, scale);
  }
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
