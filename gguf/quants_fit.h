// Weighted least-squares searches that the quantizers share. Internal to gguf/.
//
// Quantizing a sub-block is choosing levels q and a scale (and an offset) with a small sum of w * (x -
// value)^2. For given levels the best scale is a closed form, for a given scale the best levels are a
// rounding; so each search tries a row of inverse scales around the one that just fits the largest element,
// solves for the scale, and keeps the best. x and w are [n]; n <= 256.
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

// The nearest half, finite: what overflows becomes the largest half, NaN becomes 0.
inline fp16_t to_scale(float v) {
  if (std::isnan(v)) return 0;
  return fp32_to_fp16(std::fmin(std::fmax(v, -65504.0f), 65504.0f));
}

// 1 / v, or 0 when that is not a finite number.
inline float inverse(float v) {
  const float r = 1.0f / v;
  return std::isfinite(r) ? r : 0.0f;
}

// The element of largest magnitude, with its sign; 0 for no finite element.
float signed_max(const float* x, int n);

// Levels that are the integers lo..hi, lo < 0 < hi, or the sixteen of IQ4_NL, q then being 0..15.
struct Levels {
  int lo, hi;
  const int8_t* table = nullptr;  // ascending; the first entry is the one of largest magnitude

  float value(int q) const { return table ? table[q] : static_cast<float>(q); }
  int nearest(float v) const;
};

// x ~ scale * level(q). Returns the scale (of either sign) and fills q [n].
// Tries 2 * n_tries + 1 inverse scales, `step` levels apart; with a table, twice that: it is not symmetric.
float fit_symmetric(const float* x, const float* w, int n, const Levels& levels, int n_tries, float step,
                    int8_t* q);

// x ~ scale * q + min, q in 0..q_max, scale >= 0. Fills q [n].
enum class MinSign { any, not_positive };
struct ScaleMin {
  float scale, min;
};
struct AffineSearch {
  int q_max;
  float first, step;  // inverse scales q_max + first + step * i levels over the range of x, i = 0..n_tries
  int n_tries;
  MinSign sign;
};
ScaleMin fit_affine(const float* x, const float* w, int n, const AffineSearch& search, uint8_t* q);

// v ~ d * s with s an integer in lo..hi: the d for a super-block whose sub-blocks have the scales v [n],
// where w [n] says how much a squared error in each costs. Fills s.
float fit_scales(const float* v, const float* w, int n, int lo, int hi, int* s);

// The integer in lo..hi next to `s` (or s) that, times d, is the best scale for x, when levels are chosen for
// it.
int refine_scale(const float* x, const float* w, int n, const Levels& levels, float d, int s, int lo, int hi);

// Weights of elements x [n]: the importance when given, times how much the field's quantizers favour large
// elements. mean_square is that of the row or super-block. Columns without importance (never seen in
// calibration) keep a little.
void importance_weights(const float* x, const float* importance, int n, float mean_square, float* w);

float mean_square(const float* x, int64_t n);

}  // namespace tandem::quants
