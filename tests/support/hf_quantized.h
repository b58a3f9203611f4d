// Model folders whose matrices are stored in NVFP4 or FP8, as quantization tools write them, and the same weights as floats.
#pragma once

#include "support/hf_folder.h"

namespace tandem::test {

enum class HfQuantization {
  nvfp4_divided,     // NAME_packed, NAME_scale, NAME_global_scale (compressed-tensors)
  nvfp4_multiplied,  // NAME, NAME_scale, NAME_scale_2 (ModelOpt)
  // NAME and NAME_scale or, at random, NAME_scale_inv
  fp8_matrix,  // [] or [1]
  fp8_rows,    // [rows, 1] or [rows]
  fp8_blocks   // of 128 x 128 weights, [rows / 128, columns / 128] or [rows / 128, 1, columns / 128, 1]
};

// Replaces every matrix that products take by random weights: in `quantized` as quantization tools store them, in `floats` as F32. Scales
// of activations and caches are beside them. Returns how many.
int quantize_matrices(const HfFolder& folder, HfQuantization quantization, unsigned seed, HfFolder& quantized, HfFolder& floats);

}  // namespace tandem::test
