// Launches kernels that may begin before the previous one has ended: see overlap.h.
#pragma once

#include <utility>

#include "ggml-cuda/compiled_op.h"
#include "ggml-cuda/overlap.h"

namespace tandem::cuda {

// Whether a kernel's code, as loaded on the current device, has the instructions of overlap.h. Any thread.
bool can_overlap(const void* kernel);

template <class... Parameters, class... Arguments>
void launch_overlapping(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                        cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = can_overlap(reinterpret_cast<const void*>(kernel)) ? 1 : 0;
  TANDEM_CUDA(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

}  // namespace tandem::cuda
