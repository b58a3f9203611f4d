// A kernel between what is enqueued before and kernels that may begin early (overlap.h).
#pragma once

#include <cuda_runtime.h>

namespace tandem::cuda {

// Kernels enqueued after it begin when everything before it is done, in this stream and in those that it has waited for;
// so they may read what that has written before they wait for the kernel before them.
void launch_fence(cudaStream_t stream);

}  // namespace tandem::cuda
