// What the driver reports, as a sentence. (Errors of its calls: check_cuda in compiled_op.h.)
#pragma once

#include <cuda_runtime.h>

#include <string>

namespace tandem::cuda {

// Returns why cudaGetDeviceCount, whose status this is, finds no GPU.
std::string why_no_gpu(cudaError_t status);

}  // namespace tandem::cuda
