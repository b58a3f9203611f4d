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

}  // namespace tandem::quants
