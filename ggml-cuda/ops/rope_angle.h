// The angle of a rotation as a fraction of a turn. As a float, an angle of 100000 radians is only accurate to
// 0.004; so the product with the position is computed in double precision and reduced to half a turn either
// way before rounding.
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
