// Launches kernels that may begin before the previous one has ended: see overlap.h.
#pragma once

#include <atomic>
#include <utility>

#include "ggml-cuda/compiled_op.h"
#include "ggml-cuda/overlap.h"

namespace tandem::cuda {

// Lets a kernel use all shared memory of a block, `limit` bytes with its static part, on the current device.
void allow_shared(const void* kernel, size_t limit);

// Whether a kernel's code, as loaded on the current device, has the instructions of overlap.h. Any thread.
bool can_overlap(const void* kernel);

inline cudaLaunchAttribute overlap_attribute() {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return attribute;
}
inline cudaLaunchConfig_t launch_config(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                                        cudaLaunchAttribute* attributes, unsigned n_attributes) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = n_attributes;
  return config;
}

template <class... Parameters, class... Arguments>
void launch_overlapping(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                        cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchAttribute attribute = overlap_attribute();
  const unsigned n = can_overlap(reinterpret_cast<const void*>(kernel)) ? 1 : 0;
  const cudaLaunchConfig_t config = launch_config(grid, block, shared_bytes, stream, &attribute, n);
  TANDEM_CUDA(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

// The same for a kernel whose blocks wait for each other: all of them begin, or none. Where a driver refuses both at once, it does not
// begin early.
extern std::atomic<bool> may_overlap_together;
template <class... Parameters, class... Arguments>
void launch_together(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                     const Arguments&... arguments) {
  cudaLaunchAttribute attributes[2] = {{}, overlap_attribute()};
  attributes[0].id = cudaLaunchAttributeCooperative;
  attributes[0].val.cooperative = 1;
  const unsigned n = may_overlap_together && can_overlap(reinterpret_cast<const void*>(kernel)) ? 2 : 1;
  cudaLaunchConfig_t config = launch_config(grid, block, shared_bytes, stream, attributes, n);
  cudaError_t status = cudaLaunchKernelEx(&config, kernel, arguments...);
  if (status == cudaErrorNotSupported && n == 2) {
    cudaGetLastError();
    may_overlap_together = false;
    config.numAttrs = 1;
    status = cudaLaunchKernelEx(&config, kernel, arguments...);
  }
  TANDEM_CUDA(status);
}

}  // namespace tandem::cuda
