// Inner loops of the quantizers' searches: sixteen candidate scales in parallel, one per lane, each summed
// over the elements in order, so every instruction set gives the same bits as a plain loop over one
// candidate. Internal to gguf/. x and w are [n]; every other pointer is [kLanes].
#pragma once

#include "gguf/lanes.h"
#include "gguf/quants_fit.h"

namespace tandem::quants {

// x ~ scale * q, q = x * inverse_scale rounded into lo..hi. Fills gain: the weighted squared error of all
// zeros less that of the best scale for these q.
void symmetric_lanes(const float* x, const float* w, int n, float lo, float hi, const float* inverse_scale,
                     float* gain);

// x ~ scale * q + min, q = (x - first_min) * inverse_scale rounded into 0..q_max. Fills the best scale and
// min, and the weighted squared error less a constant.
void affine_lanes(const float* x, const float* w, int n, float q_max, MinSign sign, float first_min,
                  const float* inverse_scale, float* scale, float* min, float* loss);

// Entries of a grid, levels [width, n], for a vector of `width` elements: a = sum of w x g, b = sum of w g^2. n is a
// multiple of kLanes; a and b are [n].
void grid_products(const float* levels, int n, int width, const float* x, const float* w, float* a, float* b);
// flipped [n] = a less twice the smallest product of each entry: a with the sign flipped that costs least.
void grid_flips(const float* levels, int n, int width, const float* x, const float* w, const float* a,
                float* flipped);
// Makes a and b those of levels to which `delta` is added, a_less and b_less those from which it is taken.
void grid_deltas(const float* levels, int n, int width, const float* x, const float* w, float delta, float* a,
                 float* b, float* a_less, float* b_less);
// The first entry with the least scale * b - 2 a.
int best_entry(const float* a, const float* b, int n, float scale);

}  // namespace tandem::quants
