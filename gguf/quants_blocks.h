// Fits the super-blocks of the K types: 256 elements in sub-blocks of 16 or 32; each sub-block has an integer
// scale (and minimum), and all share one half-precision factor d (and dmin). The sub-blocks are fitted in
// parallel, one per lane (see lanes.h), so every instruction set gives the same bits. Internal to gguf/.
//
// Stages: search the best scale of each sub-block; approximate the scales by small integers times d; try
// the neighbours of each integer; round the codes and solve for d once more; round the codes again with d as
// it is stored.
#pragma once

#include <cstdint>

#include "base/fp16.h"

namespace tandem::quants {

inline constexpr int kBlockElements = 256;
inline constexpr int kMaxSubs = 16;

// x = d * scale * q, q and scale of either sign, in 16 sub-blocks: Q3_K, Q6_K.
struct SymmetricType {
  int lo, hi;              // range of q
  int scale_lo, scale_hi;  // range of the integer scales
  int n_tries;             // the search tries 2 * n_tries + 1 inverse scales
  float spacing;           // between them, in levels
};

struct SymmetricBlock {
  fp16_t d;
  int scales[kMaxSubs];
  uint8_t codes[kBlockElements];  // q - lo
};

// importance: [256], or null.
void fit_block(const SymmetricType& type, const float* x, const float* importance, SymmetricBlock& block);

// x = d * scale * q - dmin * min, all integers >= 0: Q2_K, Q4_K, Q5_K.
struct AffineType {
  int width;  // elements in a sub-block: 16 or 32
  int q_max;
  int scale_max;  // of the integer scales and minima
  // Inverse scales to try: q_max + first + spacing * i levels over the range of x, i = 0..n_tries.
  float first, spacing;
  int n_tries;
  float flatness;  // weight of an element without importance: flatness * rms + |x|

  int n_subs() const { return kBlockElements / width; }
};

struct AffineBlock {
  fp16_t d, dmin;
  uint8_t scales[kMaxSubs], mins[kMaxSubs];
  uint8_t codes[kBlockElements];
};

void fit_block(const AffineType& type, const float* x, const float* importance, AffineBlock& block);

}  // namespace tandem::quants
