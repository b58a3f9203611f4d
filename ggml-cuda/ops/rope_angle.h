// The angle of a rotation as a fraction of a turn. An angle of 100000 radians is known to 0.004 in a float;
// so the product with the position is made in double precision and reduced to half a turn either way before
// it is rounded.
#pragma once

#include <cstdint>

#include "ggml-cuda/portable.h"

namespace tandem::cuda {

// In [-0.5, 0.5], within 2^-26 (1e-7 radians) for positions below 2^24.
TANDEM_HD inline float fraction_of_turn(double turns_per_position, int32_t position) {
  const double turns = turns_per_position * position;
  return static_cast<float>(turns - rint(turns));
}

}  // namespace tandem::cuda
