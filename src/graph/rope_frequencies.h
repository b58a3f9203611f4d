// The scaling of a rope op, the same on every device: the angle of pair i at position p is
// p * rope_frequencies()[i]; cosines and sines are multiplied by rope_magnitude() and by
// rope_temperature(p).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/ops.h"

namespace tandem {

// Returns the radians per position of every pair, [n_rot / 2]. `factors` is [n_rot / 2], or empty for none.
std::vector<double> rope_frequencies(const RopeParams& rope, std::span<const float> factors);

// Returns the factor for cosines and sines at all positions. With YaRN it grows with the logarithm of the
// context extension: larger q and k sharpen attention.
float rope_magnitude(const RopeParams& rope);

// Returns the factor for the query at this position; 1 for models without attention temperature.
float rope_temperature(const RopeParams& rope, int32_t position);

}  // namespace tandem
