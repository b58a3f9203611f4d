// Tensors and hyperparameters of Gemma 4, whose layers differ in more than their number. For shapes.cpp.
#pragma once

#include "tools/synth/shapes.h"

namespace tandem::tools {

std::vector<ShapeTensor> gemma4_tensors_of(const Shape& shape);
// Those beyond what all architectures share.
void add_gemma4_hyperparameters(const Shape& shape, Metadata& metadata);
// [head_dim_full / 2]: the first quarter turns, the others stand still.
std::vector<float> gemma4_rope_factors(const Shape& shape);

}  // namespace tandem::tools
