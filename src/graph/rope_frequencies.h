// What a rope op's scaling method comes to, whatever device runs it: the angle of pair i at position p is
// p * rope_frequencies()[i], and cosines and sines are multiplied by rope_magnitude().
#pragma once

#include <span>
#include <vector>

#include "graph/ops.h"

namespace tandem {

// Radians per position of every pair, [n_rot / 2]. `factors` is [n_rot / 2], or empty for none.
std::vector<double> rope_frequencies(const RopeOp& op, std::span<const float> factors);

// YaRN sharpens attention by growing q and k with the logarithm of the stretch.
float rope_magnitude(const RopeOp& op);

}  // namespace tandem
