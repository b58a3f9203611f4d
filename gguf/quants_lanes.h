// The inner loops of the quantizers' searches: sixteen candidate scales side by side, one a lane, each summed
// over the elements in order. So every instruction set gives the same bits as a plain loop over one
// candidate. Internal to gguf/. x and w are [n]; every other pointer is [kLanes].
#pragma once

#include "gguf/lanes.h"
#include "gguf/quants_fit.h"

namespace tandem::quants {

// x ~ scale * q, q the nearest of lo..hi to x * inverse_scale: how much the best scale for these q brings the
// weighted squared error below that of all zeros.
void symmetric_lanes(const float* x, const float* w, int n, float lo, float hi, const float* inverse_scale,
                     float* gain);

// x ~ scale * q + min, q the nearest of 0..q_max to (x - first_min) * inverse_scale: the best scale, min and
// the weighted squared error, less a constant.
void affine_lanes(const float* x, const float* w, int n, float q_max, MinSign sign, float first_min,
                  const float* inverse_scale, float* scale, float* min, float* loss);

}  // namespace tandem::quants
