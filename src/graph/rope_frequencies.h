// What a rope op's scaling method comes to, whatever device runs it: the angle of pair i at position p is
// p * rope_frequencies()[i], and cosines and sines are multiplied by rope_magnitude() and by
// rope_temperature(p).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/ops.h"

namespace tandem {

// Radians per position of every pair, [n_rot / 2]. `factors` is [n_rot / 2], or empty for none.
std::vector<double> rope_frequencies(const RopeParams& rope, std::span<const float> factors);

// YaRN sharpens attention by growing q and k with the logarithm of the stretch.
float rope_magnitude(const RopeParams& rope);

// What the query at this position is multiplied by: 1 for models without attention temperature.
float rope_temperature(const RopeParams& rope, int32_t position);

}  // namespace tandem
