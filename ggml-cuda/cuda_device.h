// NVIDIA GPUs as devices, on CUDA streams and events. A device is one GPU: one compute stream in whose order
// everything happens, weights re-laid out at upload, segments of one token captured as CUDA graphs.
#pragma once

#include "device/registry.h"

namespace tandem::cuda {

// The GPUs of this machine, as "CUDA0", "CUDA1", ...; or why there is none: "no NVIDIA driver", "no NVIDIA
// GPU", ... Throws nothing.
FoundDevices find_devices();

}  // namespace tandem::cuda
