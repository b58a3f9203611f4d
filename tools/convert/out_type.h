// What the tensors of a checkpoint become in a GGUF file (--outtype).
#pragma once

#include <vector>

#include "tools/convert/tensor_mapping.h"

namespace tandem::tools {

enum class OutType { automatic, F32, F16, BF16, Q8_0 };

// Whether it is NVFP4 whose rows can be copied, with a factor in a tensor of its own.
bool stays_nvfp4(const TensorMapping& mapping);
// Whether its blocks are those of the checkpoint.
bool is_repacked(const TensorMapping& mapping);
// Resolves `automatic` to BF16 or F16, as most weights are stored.
OutType resolve_out_type(OutType type, const std::vector<TensorMapping>& mappings);
// Sets the dtypes: norms, biases and routers stay F32; MXFP4 stays MXFP4, and NVFP4 where it can.
void choose_dtypes(std::vector<TensorMapping>& mappings, OutType type);

}  // namespace tandem::tools
