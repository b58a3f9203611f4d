// Fits the super-blocks of the K types: 256 elements in sub-blocks of 16 or 32, each with an integer scale
// (and minimum) times one half for all. All sub-blocks are fitted side by side, one a lane (see lanes.h), so
// every instruction set gives the same bits. Internal to gguf/.
//
// Each sub-block's scale is searched on its own; then the scales are fitted by small integers times one half;
// then the integers' neighbours are tried; then the codes are rounded, the half is solved for once more, and
// the codes are rounded with what it really gives.
#pragma once

#include <cstdint>

#include "base/fp16.h"

namespace tandem::quants {

inline constexpr int kBlockElements = 256;
inline constexpr int kMaxSubs = 16;

// x = d * scale * q, q and scale of either sign, in 16 sub-blocks: Q3_K, Q6_K.
struct SymmetricType {
  int lo, hi;              // of q
  int scale_lo, scale_hi;  // of the integer scales
  int n_tries;             // 2 * n_tries + 1 inverse scales, `step` levels apart
  float step;
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
  int scale_max;      // of the integer scales and minima
  float first, step;  // inverse scales q_max + first + step * i levels over the range of x, i = 0..n_tries
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
