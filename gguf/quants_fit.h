// Weighted least-squares searches shared by the quantizers. Internal to gguf/.
//
// To quantize a sub-block is to choose levels q and a scale (and an offset) with a small sum of
// w * (x - value)^2. For given levels the best scale has a closed form; for a given scale the best levels are
// a rounding. So each search tries inverse scales around the one that fits the largest element, solves for
// the scale, and keeps the best. x and w are [n]; n <= 256.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/fp16.h"

namespace tandem::quants {

// Nearest integer (ties to even) in [lo, hi]; NaN gives lo.
inline int nearest_in(float v, int lo, int hi) {
  const auto low = static_cast<float>(lo), high = static_cast<float>(hi);
  v = v > low ? v : low;
  v = v < high ? v : high;
  return static_cast<int>(std::bit_cast<uint32_t>(v + 12582912.0f) & 0x7fffff) - 0x400000;  // 1.5 * 2^23
}

// Rounds to half precision, always finite: overflow gives the largest half, NaN gives 0.
inline fp16_t to_scale(float v) {
  if (std::isnan(v)) return 0;
  return fp32_to_fp16(std::fmin(std::fmax(v, -65504.0f), 65504.0f));
}

// 1 / v, or 0 when that is not finite.
inline float inverse(float v) {
  const float r = 1.0f / v;
  return std::isfinite(r) ? r : 0.0f;
}

// Returns the element of largest magnitude, with its sign; 0 if no element is finite.
float signed_max(const float* x, int n);

// The levels of a type: the integers lo..hi, lo < 0 < hi; or the sixteen of IQ4_NL, q being 0..15.
struct Levels {
  int lo, hi;
  const int8_t* table = nullptr;  // ascending; the first entry has the largest magnitude

  float value(int q) const { return table ? table[q] : static_cast<float>(q); }
  int nearest(float v) const;
};

// x ~ scale * level(q). Returns the scale (of either sign) and fills q [n].
// Tries 2 * n_tries + 1 inverse scales, `spacing` levels apart; twice that with a table, which is asymmetric.
float fit_symmetric(const float* x, const float* w, int n, const Levels& levels, int n_tries, float spacing,
                    int8_t* q);

// x ~ scale * q + min, q in 0..q_max, scale >= 0. Fills q [n].
enum class MinSign { any, not_positive };
struct ScaleMin {
  float scale, min;
};
struct AffineSearch {
  int q_max;
  // Inverse scales to try: q_max + first + spacing * i levels over the range of x, i = 0..n_tries.
  float first, spacing;
  int n_tries;
  MinSign sign;
};
ScaleMin fit_affine(const float* x, const float* w, int n, const AffineSearch& search, uint8_t* q);

// v ~ d * s with integers s in lo..hi: finds d for a super-block whose sub-blocks have the scales v [n].
// w [n] weighs the squared error of each. Fills s.
float fit_scales(const float* v, const float* w, int n, int lo, int hi, int* s);

// Returns the best integer scale for x (times d) of s, s - 1 and s + 1, in lo..hi, with levels chosen for it.
int refine_scale(const float* x, const float* w, int n, const Levels& levels, float d, int s, int lo, int hi);

// Computes the weights w of elements x [n]: importance times sqrt(square + x^2), which favours large elements
// as other GGUF quantizers do. `square` is the mean square of the row or super-block. Columns without
// importance (never seen in calibration) keep a small weight.
void importance_weights(const float* x, const float* importance, int n, float mean_square, float* w);

float mean_square(const float* x, int64_t n);

}  // namespace tandem::quants
