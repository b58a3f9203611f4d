#include "gguf/quants_blocks.h"

#include <algorithm>
#include <cmath>

#include "gguf/lanes.h"
#include "gguf/quants_fit.h"

namespace tandem::quants {
namespace {

// Sub-blocks as columns: [width] rows of 16 lanes, one lane per sub-block. With 8 sub-blocks they are there
// twice, and the two halves of a vector try different candidates.
struct Columns {
  int width;
  Lanes x[32], w[32];

  bool halves() const { return width == 32; }
  int n_subs() const { return kBlockElements / width; }
};

[[gnu::always_inline]] inline void transpose(const float* from, int width, Lanes* to) {
  const int n_subs = kBlockElements / width;
  for (int e = 0; e < width; ++e) {
    float row[kLanes];
    for (int l = 0; l < kLanes; ++l) row[l] = from[l % n_subs * width + e];
    to[e] = load(row);
  }
}

// Copies the codes back to element order.
[[gnu::always_inline]] inline void put_codes(const ByteLanes* rows, int width, uint8_t* codes) {
  const int n_subs = kBlockElements / width;
  for (int l = 0; l < n_subs; ++l) {
    for (int e = 0; e < width; ++e) codes[l * width + e] = rows[e][l];
  }
}

[[gnu::always_inline]] inline ByteLanes to_bytes(const Lanes& q) {
  return __builtin_convertvector(__builtin_convertvector(q, IntLanes), ByteLanes);
}

[[gnu::always_inline]] inline Lanes squares_of(const Columns& c) {
  Lanes sum{};
  for (int e = 0; e < c.width; ++e) sum += c.x[e] * c.x[e];
  return sum;
}

[[gnu::always_inline]] inline void weigh_by_importance(const float* x, const float* importance, Columns& c) {
  float w[kBlockElements];
  importance_weights(x, importance, kBlockElements, 2 * mean_square(x, kBlockElements), w);
  transpose(w, c.width, c.w);
}

// ---- x = d * scale * q

// Weight of an element without importance: flatness * mean square + x^2. With x^2 alone the largest elements
// would dominate the fit.
constexpr float kFlatness = 0.5f;
constexpr int kSymmetricRounds = 3;

struct SymmetricFits {
  Lanes scale{}, gain{}, weight{};  // the best so far; its gain over all zeros; sum of w * q^2
};

// Rounds x * inverse_scale to levels, solves for the scale, and keeps it if it is the best so far.
[[gnu::always_inline]] inline void try_scale(const Columns& c, const Lanes& low, const Lanes& high,
                                             const Lanes& inverse_scale, SymmetricFits& best) {
  Lanes xl{}, ll{};
  for (int e = 0; e < 16; ++e) {
    const Lanes q = nearest(c.x[e] * inverse_scale, low, high);
    const Lanes wq = c.w[e] * q;
    xl += wq * c.x[e];
    ll += wq * q;
  }
  const Lanes scale = xl / ll;
  const Lanes gain = ll > Lanes{} ? xl * scale : Lanes{};
  best.scale = gain > best.gain ? scale : best.scale;
  best.weight = gain > best.gain ? ll : best.weight;
  best.gain = gain > best.gain ? gain : best.gain;
}

TANDEM_LANES_FN SymmetricFits search_scales(const SymmetricType& type, const Columns& c) {
  const Lanes low = splat(static_cast<float>(type.lo)), high = splat(static_cast<float>(type.hi));
  Lanes largest{}, max{};  // the element of largest magnitude
  for (int e = 0; e < 16; ++e) {
    const Lanes size = magnitude(c.x[e]);
    max = size > largest ? c.x[e] : max;
    largest = size > largest ? size : largest;
  }
  const Lanes inverse_max = inverse_of(max);
  SymmetricFits best;
  for (int k = -type.n_tries; k <= type.n_tries; ++k) {
    const float extreme = static_cast<float>(type.lo) + type.spacing * static_cast<float>(k);
    try_scale(c, low, high, extreme * inverse_max, best);
  }
  for (int round = 0; round < kSymmetricRounds; ++round) {
    try_scale(c, low, high, inverse_of(best.scale), best);
  }
  // All weights zero, or only overflow: the plain fit.
  best.scale = best.gain > Lanes{} ? best.scale : max / low;
  best.scale = inverse_max != Lanes{} ? best.scale : Lanes{};
  return best;
}

// Picks the best of each integer scale and its two neighbours, with codes chosen for it.
[[gnu::always_inline]] inline void refine(const SymmetricType& type, const Columns& c, float d,
                                          Lanes& scales) {
  const Lanes low = splat(static_cast<float>(type.lo)), high = splat(static_cast<float>(type.hi));
  const Lanes least_scale = splat(static_cast<float>(type.scale_lo));
  const Lanes most_scale = splat(static_cast<float>(type.scale_hi));
  const Lanes never = splat(INFINITY);
  Lanes best = scales, least = never;
  for (const float offset : {0.0f, -1.0f, 1.0f}) {
    const Lanes candidate = scales + offset, scale = d * candidate, inverse_scale = inverse_of(scale);
    Lanes loss{};
    for (int e = 0; e < 16; ++e) {
      const Lanes error = scale * nearest(c.x[e] * inverse_scale, low, high) - c.x[e];
      loss += c.w[e] * error * error;
    }
    loss = candidate < least_scale ? never : loss;
    loss = candidate > most_scale ? never : loss;
    best = loss < least ? candidate : best;
    least = loss < least ? loss : least;
  }
  scales = best;
}

TANDEM_LANES_FN void settle(const SymmetricType& type, const Columns& c, SymmetricBlock& block) {
  const Lanes low = splat(static_cast<float>(type.lo)), high = splat(static_cast<float>(type.hi));
  float numbers[kLanes];
  for (int s = 0; s < kLanes; ++s) numbers[s] = static_cast<float>(block.scales[s]);
  Lanes scales = load(numbers);
  refine(type, c, fp16_to_fp32(block.d), scales);

  Lanes inverse_scale = inverse_of(fp16_to_fp32(block.d) * scales), xl{}, ll{};
  for (int e = 0; e < 16; ++e) {
    const Lanes level = scales * nearest(c.x[e] * inverse_scale, low, high);
    xl += c.w[e] * c.x[e] * level;
    ll += c.w[e] * level * level;
  }
  const float weight = sum_of(ll);
  if (weight > 0.0f) block.d = to_scale(sum_of(xl) / weight);

  inverse_scale = inverse_of(fp16_to_fp32(block.d) * scales);
  ByteLanes rows[16];
  for (int e = 0; e < 16; ++e) rows[e] = to_bytes(nearest(c.x[e] * inverse_scale, low, high) - low);
  put_codes(rows, 16, block.codes);
  for (int s = 0; s < kLanes; ++s) block.scales[s] = static_cast<int>(scales[s]);
}

TANDEM_LANES_FN void lay_out_symmetric(const float* x, const float* importance, Columns& c) {
  c.width = 16;
  transpose(x, 16, c.x);
  if (importance) return weigh_by_importance(x, importance, c);
  const float flat = kFlatness * sum_of(squares_of(c)) / static_cast<float>(kBlockElements);
  for (int e = 0; e < 16; ++e) c.w[e] = flat + c.x[e] * c.x[e];
}

}  // namespace

void fit_block(const SymmetricType& type, const float* x, const float* importance, SymmetricBlock& block) {
  Columns c;
  lay_out_symmetric(x, importance, c);
  const SymmetricFits fit = search_scales(type, c);
  float scales[kLanes], weights[kLanes];
  store(scales, fit.scale);
  store(weights, fit.weight);
  block.d = to_scale(fit_scales(scales, weights, kLanes, type.scale_lo, type.scale_hi, block.scales));
  settle(type, c, block);
}

// ---- x = d * scale * q - dmin * min

namespace {

constexpr int kAffineRounds = 3;

struct AffineFits {
  Lanes scale{}, min{}, loss{};  // the weighted squared error, less a constant
  Lanes weight{};                // sum of w * q^2
};

// Sums that do not depend on the codes.
struct AffineSums {
  Lanes w{}, x{};  // sums of w and w * x
};

// Rounds (x - min) * inverse_scale, solves for scale and a minimum <= 0, and keeps the best so far.
[[gnu::always_inline]] inline void try_scale(const Columns& c, const AffineSums& sums, float q_max,
                                             const Lanes& from_min, const Lanes& inverse_scale,
                                             AffineFits& best) {
  const Lanes zero{}, high = splat(q_max);
  Lanes sl{}, sll{}, sxl{};
  for (int e = 0; e < c.width; ++e) {
    const Lanes q = nearest((c.x[e] - from_min) * inverse_scale, zero, high);
    const Lanes wq = c.w[e] * q;
    sl += wq;
    sll += wq * q;
    sxl += wq * c.x[e];
  }
  const Lanes det = sums.w * sll - sl * sl;
  const Lanes mean = sums.w > zero ? sums.x / sums.w : zero;
  Lanes scale = det > zero ? (sums.w * sxl - sums.x * sl) / det : zero;
  Lanes min = det > zero ? (sll * sums.x - sl * sxl) / det : mean;
  const Lanes through_zero = sll > zero ? sxl / sll : zero;
  scale = min > zero ? through_zero : scale;
  min = min > zero ? zero : min;
  Lanes loss = scale * (scale * sll + 2 * (min * sl - sxl)) + min * (min * sums.w - 2 * sums.x);
  loss = scale >= zero ? loss : splat(INFINITY);
  best.scale = loss < best.loss ? scale : best.scale;
  best.min = loss < best.loss ? min : best.min;
  best.weight = loss < best.loss ? sll : best.weight;
  best.loss = loss < best.loss ? loss : best.loss;
}

// Swaps the halves: each lane gets the value of the other lane of the same sub-block.
[[gnu::always_inline]] inline Lanes mirrored(const Lanes& v) {
  return __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
}

// 0 in the lower half, 1 in the upper: selects the candidate that a lane tries.
constexpr Lanes kHalf{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};

TANDEM_LANES_FN AffineFits search_scales(const AffineType& type, const Columns& c, AffineSums& sums) {
  const Lanes zero{};
  const auto q_max = static_cast<float>(type.q_max);
  Lanes lo = c.x[0], hi = c.x[0];
  for (int e = 0; e < c.width; ++e) {
    lo = c.x[e] < lo ? c.x[e] : lo;
    hi = c.x[e] > hi ? c.x[e] : hi;
    sums.w += c.w[e];
    sums.x += c.w[e] * c.x[e];
  }
  lo = lo < zero ? lo : zero;
  const Lanes inverse_range = inverse_of(hi - lo);
  AffineFits best{(hi - lo) / q_max, lo, splat(INFINITY), zero};
  const int at_once = c.halves() ? 2 : 1;
  for (int i = 0; i <= type.n_tries; i += at_once) {
    Lanes levels = splat(q_max + type.first + type.spacing * static_cast<float>(i));
    if (c.halves()) levels += type.spacing * kHalf;
    try_scale(c, sums, q_max, lo, levels * inverse_range, best);
  }
  if (c.halves()) {
    const Lanes other = mirrored(best.loss);
    best.scale = other < best.loss ? mirrored(best.scale) : best.scale;
    best.min = other < best.loss ? mirrored(best.min) : best.min;
    best.weight = other < best.loss ? mirrored(best.weight) : best.weight;
    best.loss = other < best.loss ? other : best.loss;
  }
  for (int round = 0; round < kAffineRounds; ++round) {
    try_scale(c, sums, q_max, best.min, inverse_of(best.scale), best);
  }
  // Flat sub-blocks, and sub-blocks that overflow.
  const Lanes finite_lo = lo - lo == zero ? lo : zero;
  const Lanes usable = lo - lo == zero ? inverse_range : zero;
  best.scale = usable != zero ? best.scale : zero;
  best.min = usable != zero ? best.min : finite_lo;
  best.weight = usable != zero ? best.weight : zero;
  return best;
}

struct Integers {
  Lanes scale, min;
};

// Scale and minimum were rounded independently, and their errors partly cancel: tries the neighbours of the
// pair.
[[gnu::always_inline]] inline void refine(const AffineType& type, const Columns& c, float d, float dmin,
                                          Integers& integers) {
  const Lanes zero{}, high = splat(static_cast<float>(type.q_max));
  const Lanes most = splat(static_cast<float>(type.scale_max));
  Integers best = integers;
  const Lanes never = splat(INFINITY);
  Lanes least = never;
  constexpr float kOffsets[10][2] = {{0, 0},   {0, -1}, {0, 1},  {-1, 0}, {1, 0},
                                     {-1, -1}, {-1, 1}, {1, -1}, {1, 1},  {0, 0}};
  const int at_once = c.halves() ? 2 : 1;
  for (int k = 0; k < 9; k += at_once) {
    Integers candidate{integers.scale + kOffsets[k][0], integers.min + kOffsets[k][1]};
    if (c.halves()) {
      candidate.scale += (kOffsets[k + 1][0] - kOffsets[k][0]) * kHalf;
      candidate.min += (kOffsets[k + 1][1] - kOffsets[k][1]) * kHalf;
    }
    const Lanes scale = d * candidate.scale, min = dmin * candidate.min, inverse_scale = inverse_of(scale);
    Lanes loss{};
    for (int e = 0; e < c.width; ++e) {
      const Lanes v = c.x[e] + min;
      const Lanes error = scale * nearest(v * inverse_scale, zero, high) - v;
      loss += c.w[e] * error * error;
    }
    loss = candidate.scale < zero ? never : loss;
    loss = candidate.scale > most ? never : loss;
    loss = candidate.min < zero ? never : loss;
    loss = candidate.min > most ? never : loss;
    best.scale = loss < least ? candidate.scale : best.scale;
    best.min = loss < least ? candidate.min : best.min;
    least = loss < least ? loss : least;
  }
  if (c.halves()) {
    const Lanes other = mirrored(least);
    best.scale = other < least ? mirrored(best.scale) : best.scale;
    best.min = other < least ? mirrored(best.min) : best.min;
  }
  integers = best;
}

// With codes and integers fixed, the best d and dmin are a 2x2 least-squares problem.
[[gnu::always_inline]] inline void refit_halves(const AffineType& type, const Columns& c,
                                                const AffineSums& sums, const Integers& integers,
                                                AffineBlock& block) {
  const Lanes zero{}, high = splat(static_cast<float>(type.q_max));
  const Lanes inverse_scale = inverse_of(fp16_to_fp32(block.d) * integers.scale);
  const Lanes shift = fp16_to_fp32(block.dmin) * integers.min;
  Lanes wll{}, wl{}, wxl{};
  for (int e = 0; e < c.width; ++e) {
    const Lanes q = nearest((c.x[e] + shift) * inverse_scale, zero, high);
    const Lanes wq = c.w[e] * q;
    wl += wq;
    wll += wq * q;
    wxl += wq * c.x[e];
  }
  const int n = c.n_subs();
  const float ss = sum_of(integers.scale * integers.scale * wll, n);
  const float sm = sum_of(integers.scale * integers.min * wl, n);
  const float mm = sum_of(integers.min * integers.min * sums.w, n);
  const float sx = sum_of(integers.scale * wxl, n), mx = sum_of(integers.min * sums.x, n);
  const float det = ss * mm - sm * sm;
  if (det > 1e-6f * ss * mm) {
    const float d = (mm * sx - sm * mx) / det, dmin = (sm * sx - ss * mx) / det;
    if (!(d >= 0.0f && dmin >= 0.0f)) return;
    block.d = to_scale(d);
    block.dmin = to_scale(dmin);
  } else if (mm == 0.0f && ss > 0.0f && sx > 0.0f) {
    block.d = to_scale(sx / ss);
  }
}

// In: d, dmin, scales and mins of the block. Out: the whole block.
TANDEM_LANES_FN void settle(const AffineType& type, const Columns& c, const AffineSums& sums,
                            AffineBlock& block) {
  float scales[kLanes], mins[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    scales[l] = static_cast<float>(block.scales[l % c.n_subs()]);
    mins[l] = static_cast<float>(block.mins[l % c.n_subs()]);
  }
  Integers integers{load(scales), load(mins)};
  refine(type, c, fp16_to_fp32(block.d), fp16_to_fp32(block.dmin), integers);
  refit_halves(type, c, sums, integers, block);

  const Lanes zero{}, high = splat(static_cast<float>(type.q_max));
  const Lanes inverse_scale = inverse_of(fp16_to_fp32(block.d) * integers.scale);
  const Lanes shift = fp16_to_fp32(block.dmin) * integers.min;
  ByteLanes rows[32];
  for (int e = 0; e < c.width; ++e) rows[e] = to_bytes(nearest((c.x[e] + shift) * inverse_scale, zero, high));
  put_codes(rows, c.width, block.codes);
  for (int s = 0; s < c.n_subs(); ++s) {
    block.scales[s] = static_cast<uint8_t>(integers.scale[s]);
    block.mins[s] = static_cast<uint8_t>(integers.min[s]);
  }
}

TANDEM_LANES_FN void lay_out_affine(const AffineType& type, const float* x, const float* importance,
                                    Columns& c) {
  c.width = type.width;
  transpose(x, c.width, c.x);
  if (importance) return weigh_by_importance(x, importance, c);
  Lanes rms{};
  if (type.flatness > 0.0f) {
    const Lanes square = squares_of(c) / static_cast<float>(c.width);
    for (int l = 0; l < kLanes; ++l) rms[l] = type.flatness * std::sqrt(square[l]);
  }
  for (int e = 0; e < c.width; ++e) c.w[e] = rms + magnitude(c.x[e]);
}

}  // namespace

void fit_block(const AffineType& type, const float* x, const float* importance, AffineBlock& block) {
  Columns c;
  AffineSums sums;
  lay_out_affine(type, x, importance, c);
  const AffineFits fit = search_scales(type, c, sums);
  float scales[kLanes], mins[kLanes], scale_weights[kLanes], min_weights[kLanes];
  store(scales, fit.scale);
  store(mins, -fit.min);
  store(scale_weights, fit.weight);
  store(min_weights, sums.w);
  int integers[kMaxSubs];
  const int n = type.n_subs();
  block.d = to_scale(fit_scales(scales, scale_weights, n, 0, type.scale_max, integers));
  std::copy(integers, integers + n, block.scales);
  block.dmin = to_scale(fit_scales(mins, min_weights, n, 0, type.scale_max, integers));
  std::copy(integers, integers + n, block.mins);
  settle(type, c, sums, block);
}

}  // namespace tandem::quants
