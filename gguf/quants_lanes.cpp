#include "gguf/quants_lanes.h"

#include "gguf/lanes.h"

namespace tandem::quants {

TANDEM_LANES_FN void symmetric_lanes(const float* x, const float* w, int n, float lo, float hi,
                                     const float* inverse_scale, float* gain) {
  const Lanes inverse = load(inverse_scale), low = splat(lo), high = splat(hi);
  Lanes sum_xl{}, sum_ll{};
  for (int i = 0; i < n; ++i) {
    const Lanes q = nearest(x[i] * inverse, low, high);
    sum_xl += w[i] * x[i] * q;
    sum_ll += w[i] * q * q;
  }
  store(gain, sum_ll > Lanes{} ? sum_xl * sum_xl / sum_ll : Lanes{});
}

TANDEM_LANES_FN void affine_lanes(const float* x, const float* w, int n, float q_max, MinSign sign,
                                  float first_min, const float* inverse_scale, float* scale, float* min,
                                  float* loss) {
  const Lanes zero{}, inverse = load(inverse_scale), high = splat(q_max);
  float sw = 0, sx = 0;
  Lanes sl{}, sll{}, sxl{};
  for (int i = 0; i < n; ++i) {
    const Lanes q = nearest((x[i] - first_min) * inverse, zero, high);
    const Lanes wq = w[i] * q;
    sw += w[i];
    sx += w[i] * x[i];
    sl += wq;
    sll += wq * q;
    sxl += w[i] * x[i] * q;
  }
  const Lanes det = sw * sll - sl * sl;
  const Lanes mean = splat(sw > 0.0f ? sx / sw : 0.0f);
  Lanes fit_scale = det > zero ? (sw * sxl - sx * sl) / det : zero;
  Lanes fit_min = det > zero ? (sll * sx - sl * sxl) / det : mean;
  if (sign == MinSign::not_positive) {
    const Lanes through_zero = sll > zero ? sxl / sll : zero;
    fit_scale = fit_min > zero ? through_zero : fit_scale;
    fit_min = fit_min > zero ? zero : fit_min;
  }
  store(scale, fit_scale);
  store(min, fit_min);
  store(loss, fit_scale * (fit_scale * sll + 2 * (fit_min * sl - sxl)) + fit_min * (fit_min * sw - 2 * sx));
}

TANDEM_LANES_FN void grid_products(const float* levels, int n, int width, const float* x, const float* w,
                                   float* a, float* b) {
  for (int at = 0; at < n; at += kLanes) {
    Lanes sum_a{}, sum_b{};
    for (int j = 0; j < width; ++j) {
      const Lanes g = load(levels + j * n + at), weighted = w[j] * g;
      sum_a += x[j] * weighted;
      sum_b += weighted * g;
    }
    store(a + at, sum_a);
    store(b + at, sum_b);
  }
}

TANDEM_LANES_FN void grid_flips(const float* levels, int n, int width, const float* x, const float* w,
                                const float* a, float* flipped) {
  for (int at = 0; at < n; at += kLanes) {
    Lanes least = splat(3e38f);
    for (int j = 0; j < width; ++j) {
      const Lanes product = x[j] * (w[j] * load(levels + j * n + at));
      least = product < least ? product : least;
    }
    store(flipped + at, load(a + at) - 2.0f * least);
  }
}

TANDEM_LANES_FN void grid_deltas(const float* levels, int n, int width, const float* x, const float* w,
                                 float delta, float* a, float* b, float* a_less, float* b_less) {
  float of_a = 0.0f, of_b = 0.0f;
  for (int j = 0; j < width; ++j) {
    of_a += delta * (w[j] * x[j]);
    of_b += delta * (w[j] * delta);
  }
  for (int at = 0; at < n; at += kLanes) {
    Lanes cross{};
    for (int j = 0; j < width; ++j) cross += w[j] * load(levels + j * n + at);
    const Lanes plain_a = load(a + at), plain_b = load(b + at) + of_b, twice = 2.0f * delta * cross;
    store(a + at, plain_a + of_a);
    store(a_less + at, plain_a - of_a);
    store(b + at, plain_b + twice);
    store(b_less + at, plain_b - twice);
  }
}

TANDEM_LANES_FN int best_entry(const float* a, const float* b, int n, float scale) {
  Lanes least = splat(3e38f);
  IntLanes best{};
  for (int at = 0; at < n; at += kLanes) {
    const Lanes loss = scale * load(b + at) - 2.0f * load(a + at);
    const IntLanes less = loss < least;
    least = less ? loss : least;
    best = less ? IntLanes{} + at : best;
  }
  int lane = 0;
  for (int i = 1; i < kLanes; ++i) {
    if (least[i] < least[lane] || (least[i] == least[lane] && best[i] < best[lane])) lane = i;
  }
  return best[lane] + lane;
}

}  // namespace tandem::quants
