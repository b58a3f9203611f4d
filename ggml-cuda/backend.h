// The CUDA backend, for the registry. Every build has it: without nvcc it has no devices and says so, but one
// can still plan for them.
#pragma once

#include "device/registry.h"

namespace tandem::cuda {

inline constexpr const char* kBackendName = "CUDA";  // its devices: "CUDA0", "CUDA1", ...

Backend backend();

// Bytes that a weight takes on a GPU, laid out as the kernels want it (layout.h).
size_t device_weight_bytes(const Weight& weight);

}  // namespace tandem::cuda
