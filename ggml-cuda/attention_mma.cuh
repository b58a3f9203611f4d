// Tensor cores for attention.
#pragma once

#include "ggml-cuda/attention_call.cuh"
#include "ggml-cuda/mma.cuh"

namespace tandem::cuda {

// Dtypes that fit into f16 without loss of range; the second rounding costs half a unit in the last place.
inline bool is_half_like(DType dtype) {
  return dtype != DType::F32 && dtype != DType::BF16;
}

}  // namespace tandem::cuda
