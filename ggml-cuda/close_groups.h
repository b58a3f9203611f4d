// Quantizes blocks of a grouped cache on the GPU (close_groups.cu).
#pragma once

#include <cuda_runtime.h>

#include <span>

#include "device/segment.h"

namespace tandem::cuda {

// Of a layer whose pools are on the current device. Enqueues; throws as launches do.
void launch_close_groups(const KvLayer& layer, std::span<const OpenBlock> blocks, cudaStream_t stream);

}  // namespace tandem::cuda
