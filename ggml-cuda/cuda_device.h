// NVIDIA GPUs as devices, on CUDA streams and events. A device is one GPU: one compute stream in whose order
// everything happens, weights re-laid out at upload, segments of few tokens captured as CUDA graphs.
#pragma once

#include "device/registry.h"

namespace tandem::cuda {

// Finds this machine's GPUs, as "CUDA0", "CUDA1", ...; or says why there is none: "no NVIDIA driver", "no
// NVIDIA GPU", ... Does not throw.
FoundDevices find_devices();

}  // namespace tandem::cuda
