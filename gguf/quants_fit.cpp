#include "gguf/quants_fit.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "gguf/blocks.h"
#include "gguf/quants_lanes.h"

namespace tandem::quants {

float signed_max(const float* x, int n) {
  float best = 0.0f, magnitude = 0.0f;
  for (int i = 0; i < n; ++i) {
    if (std::fabs(x[i]) > magnitude) {
      magnitude = std::fabs(x[i]);
      best = x[i];
    }
  }
  return best;
}

namespace {

// All midpoints between levels of IQ4_NL are multiples of one half, so floor(2 v) gives the nearest level.
constexpr auto kNearestIq4 = [] {
  std::array<uint8_t, 512> nearest{};
  for (int i = 0; i < 512; ++i) {
    const int quarters = 2 * (i - 256) + 1;  // 4 v in the middle of the interval
    int best = 0;
    for (int q = 1; q < 16; ++q) {
      const auto distance = [&](int level) { return level > quarters ? level - quarters : quarters - level; };
      if (distance(4 * kvalues_iq4nl[q]) < distance(4 * kvalues_iq4nl[best])) best = q;
    }
    nearest[i] = static_cast<uint8_t>(best);
  }
  return nearest;
}();

}  // namespace

int Levels::nearest(float v) const {
  if (!table) return nearest_in(v, lo, hi);
  return kNearestIq4[nearest_in(2.0f * v - 0.5f, -256, 255) + 256];
}

namespace {

struct Fit {
  float scale = 0.0f;
  float gain = 0.0f;  // weighted squared error of all zeros less that of the fit
};

// Rounds x * inverse_scale to levels and solves for the scale.
Fit round_and_solve(const float* x, const float* w, int n, const Levels& levels, float inverse_scale,
                    int8_t* q) {
  float xl = 0.0f, ll = 0.0f;
  if (levels.table) {
    for (int i = 0; i < n; ++i) q[i] = static_cast<int8_t>(levels.nearest(x[i] * inverse_scale));
  } else {
    for (int i = 0; i < n; ++i) {
      q[i] = static_cast<int8_t>(nearest_in(x[i] * inverse_scale, levels.lo, levels.hi));
    }
  }
  for (int i = 0; i < n; ++i) {
    const float level = levels.value(q[i]);
    xl += w[i] * x[i] * level;
    ll += w[i] * level * level;
  }
  if (!(ll > 0.0f)) return {};
  return {xl / ll, xl * xl / ll};
}

struct SymmetricSearch {
  float extreme, spacing;
  int n_tries;
  float inverse_max;
};

// Returns the inverse scale with the largest gain; the middle one when none gains.
float best_symmetric(const float* x, const float* w, int n, const Levels& levels,
                     const SymmetricSearch& search) {
  float best = search.extreme * search.inverse_max, gain = 0.0f;
  for (int first = -search.n_tries; first <= search.n_tries; first += kLanes) {
    const int n_candidates = std::min(kLanes, search.n_tries + 1 - first);
    float candidates[kLanes] = {}, gains[kLanes];
    for (int k = 0; k < n_candidates; ++k) {
      candidates[k] = (search.extreme + search.spacing * static_cast<float>(first + k)) * search.inverse_max;
    }
    symmetric_lanes(x, w, n, static_cast<float>(levels.lo), static_cast<float>(levels.hi), candidates, gains);
    for (int k = 0; k < n_candidates; ++k) {
      if (!(gains[k] > gain)) continue;
      gain = gains[k];
      best = candidates[k];
    }
  }
  return best;
}

}  // namespace

float fit_symmetric(const float* x, const float* w, int n, const Levels& levels, int n_tries, float spacing,
                    int8_t* q) {
  const float max = signed_max(x, n);
  const float inverse_max = inverse(max);
  if (inverse_max == 0.0f) {
    std::fill(q, q + n, static_cast<int8_t>(levels.nearest(0.0f)));
    return 0.0f;
  }
  Fit best;
  int8_t trial[256];
  const auto consider = [&](float inverse_scale) {
    const Fit fit = round_and_solve(x, w, n, levels, inverse_scale, trial);
    if (!(fit.gain > best.gain)) return false;
    best = fit;
    std::memcpy(q, trial, static_cast<size_t>(n));
    return true;
  };
  const float lowest = levels.value(levels.lo), highest = levels.value(levels.hi);
  if (levels.table) {
    for (int i = -n_tries; i <= n_tries; ++i) {
      consider((lowest + spacing * static_cast<float>(i)) * inverse_max);
      consider((highest + spacing * static_cast<float>(i)) * inverse_max);
    }
  } else {
    consider(best_symmetric(x, w, n, levels, {lowest, spacing, n_tries, inverse_max}));
  }
  for (int round = 0; round < 4 && best.scale != 0.0f && consider(inverse(best.scale)); ++round) {}
  if (best.gain > 0.0f) return best.scale;
  // All weights zero, or only overflow: the plain fit.
  for (int i = 0; i < n; ++i) q[i] = static_cast<int8_t>(levels.nearest(x[i] * lowest * inverse_max));
  return max / lowest;
}

namespace {

struct AffineFit {
  ScaleMin value;
  float loss;  // weighted squared error, less a constant
};

AffineFit solve_affine(const float* x, const float* w, int n, MinSign sign, const uint8_t* q) {
  float sw = 0, sx = 0, sl = 0, sll = 0, sxl = 0;
  for (int i = 0; i < n; ++i) {
    const auto level = static_cast<float>(q[i]);
    sw += w[i];
    sx += w[i] * x[i];
    sl += w[i] * level;
    sll += w[i] * level * level;
    sxl += w[i] * x[i] * level;
  }
  ScaleMin fit{0.0f, 0.0f};
  const float det = sw * sll - sl * sl;
  if (det > 0.0f) {
    fit = {(sw * sxl - sx * sl) / det, (sll * sx - sl * sxl) / det};
  } else if (sw > 0.0f) {
    fit = {0.0f, sx / sw};
  }
  if (sign == MinSign::not_positive && fit.min > 0.0f) fit = {sll > 0.0f ? sxl / sll : 0.0f, 0.0f};
  const float loss =
      fit.scale * (fit.scale * sll + 2 * (fit.min * sl - sxl)) + fit.min * (fit.min * sw - 2 * sx);
  return {fit, loss};
}

}  // namespace

ScaleMin fit_affine(const float* x, const float* w, int n, const AffineSearch& search, uint8_t* q) {
  float lo = x[0], hi = x[0];
  for (int i = 1; i < n; ++i) {
    lo = x[i] < lo ? x[i] : lo;
    hi = x[i] > hi ? x[i] : hi;
  }
  if (search.sign == MinSign::not_positive && !(lo < 0.0f)) lo = 0.0f;
  const float inverse_range = inverse(hi - lo);
  if (inverse_range == 0.0f || !std::isfinite(lo)) {
    std::fill(q, q + n, uint8_t{0});
    return {0.0f, std::isfinite(lo) ? lo : 0.0f};
  }

  const auto q_max = static_cast<float>(search.q_max);
  const auto round_to = [&](float inverse_scale, float min, uint8_t* to) {
    for (int i = 0; i < n; ++i) {
      to[i] = static_cast<uint8_t>(nearest_in((x[i] - min) * inverse_scale, 0, search.q_max));
    }
  };
  round_to(q_max * inverse_range, lo, q);
  AffineFit best{{(hi - lo) / q_max, lo}, INFINITY};
  uint8_t trial[256];
  const auto consider = [&](float inverse_scale, float min) {
    round_to(inverse_scale, min, trial);
    const AffineFit fit = solve_affine(x, w, n, search.sign, trial);
    if (!(fit.loss < best.loss) || !(fit.value.scale >= 0.0f)) return false;
    best = fit;
    std::memcpy(q, trial, static_cast<size_t>(n));
    return true;
  };
  float chosen = 0.0f;  // inverse scale of the best candidate
  for (int first = 0; first <= search.n_tries; first += kLanes) {
    const int n_candidates = std::min(kLanes, search.n_tries + 1 - first);
    float candidates[kLanes] = {}, scales[kLanes], mins[kLanes], losses[kLanes];
    for (int k = 0; k < n_candidates; ++k) {
      candidates[k] = (q_max + search.first + search.spacing * static_cast<float>(first + k)) * inverse_range;
    }
    affine_lanes(x, w, n, q_max, search.sign, lo, candidates, scales, mins, losses);
    for (int k = 0; k < n_candidates; ++k) {
      if (!(losses[k] < best.loss) || !(scales[k] >= 0.0f)) continue;
      best = {{scales[k], mins[k]}, losses[k]};
      chosen = candidates[k];
    }
  }
  if (chosen != 0.0f) round_to(chosen, lo, q);
  for (int round = 0; round < 4 && best.value.scale > 0.0f; ++round) {
    if (!consider(inverse(best.value.scale), best.value.min)) break;
  }
  return best.value;
}

float fit_scales(const float* v, const float* w, int n, int lo, int hi, int* s) {
  const float max = signed_max(v, n);
  const float inverse_max = inverse(max);
  std::fill(s, s + n, 0);
  if (inverse_max == 0.0f) return 0.0f;
  const auto extreme = static_cast<float>(lo < 0 ? lo : hi);
  float candidates[kLanes] = {}, gains[kLanes], best_gain = -1.0f, inverse_d = 0.0f;
  for (int k = 0; k < 15; ++k) candidates[k] = (extreme + 0.1f * static_cast<float>(k - 7)) * inverse_max;
  symmetric_lanes(v, w, n, static_cast<float>(lo), static_cast<float>(hi), candidates, gains);
  for (int k = 0; k < 15; ++k) {
    if (!(gains[k] > best_gain)) continue;
    best_gain = gains[k];
    inverse_d = candidates[k];
  }
  float vs = 0.0f, ss = 0.0f;
  for (int i = 0; i < n; ++i) {
    s[i] = nearest_in(v[i] * inverse_d, lo, hi);
    vs += w[i] * v[i] * static_cast<float>(s[i]);
    ss += w[i] * static_cast<float>(s[i]) * static_cast<float>(s[i]);
  }
  if (best_gain > 0.0f && ss > 0.0f) return vs / ss;
  for (int i = 0; i < n; ++i) s[i] = nearest_in(v[i] * extreme * inverse_max, lo, hi);
  return max / extreme;
}

int refine_scale(const float* x, const float* w, int n, const Levels& levels, float d, int s, int lo,
                 int hi) {
  int best = s;
  float least = INFINITY;
  for (int candidate : {s, s - 1, s + 1}) {
    if (candidate < lo || candidate > hi) continue;
    const float scale = d * static_cast<float>(candidate), inverse_scale = inverse(scale);
    float loss = 0.0f;
    for (int j = 0; j < n; ++j) {
      const float error = scale * levels.value(levels.nearest(x[j] * inverse_scale)) - x[j];
      loss += w[j] * error * error;
    }
    if (!(loss < least)) continue;
    least = loss;
    best = candidate;
  }
  return best;
}

float mean_square(const float* x, int64_t n) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  return static_cast<float>(sum / static_cast<double>(n));
}

void importance_weights(const float* x, const float* importance, int n, float square, float* w) {
  float sum = 0.0f;
  for (int i = 0; i < n; ++i) sum += importance[i];
  const float least = sum > 0.0f ? 1e-4f * sum / static_cast<float>(n) : 1.0f;
  for (int i = 0; i < n; ++i) w[i] = (importance[i] + least) * std::sqrt(square + x[i] * x[i]);
}

}  // namespace tandem::quants
