// Model folders whose matrices are stored in NVFP4 or FP8, as quantization tools write them, and the same weights as floats.
#pragma once

#include "support/hf_folder.h"

namespace tandem::test {

enum class HfQuantization {
  nvfp4_divided,     // NAME_packed, NAME_scale, NAME_global_scale (compressed-tensors)
  nvfp4_multiplied,  // NAME, NAME_scale, NAME_scale_2 (ModelOpt)
  fp8_matrix,        // NAME, NAME_scale []
  fp8_rows,          // NAME, NAME_scale [rows, 1]
  fp8_blocks         // NAME, NAME_scale of config's blocks of 128 x 128
};

// Replaces every matrix that products take by random weights: in `quantized` as quantization tools store them, in `floats` as F32. Scales
// of activations and caches are beside them. Returns how many.
int quantize_matrices(const HfFolder& folder, HfQuantization quantization, unsigned seed, HfFolder& quantized, HfFolder& floats);

}  // namespace tandem::test
