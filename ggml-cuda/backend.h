// The CUDA backend, for the registry. Every build has it: without nvcc it has no devices and reports so, but
// the planner can still plan for them.
#pragma once

#include "device/registry.h"

namespace tandem::cuda {

inline constexpr const char* kBackendName = "CUDA";  // its devices: "CUDA0", "CUDA1", ...

Backend backend();

// Bytes of a weight on a GPU, in the kernels' layout (layout.h).
size_t device_weight_bytes(const Weight& weight);

}  // namespace tandem::cuda
