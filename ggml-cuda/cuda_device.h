// NVIDIA GPUs as devices, on CUDA streams and events. A device is one GPU: one compute stream in whose order
// everything happens, weights re-laid out at upload, segments of one token captured as CUDA graphs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace tandem::cuda {

// The GPUs of this machine, as "CUDA0", "CUDA1", ...; empty when there is no driver or no GPU. Throws
// nothing.
std::vector<std::unique_ptr<Device>> make_cuda_devices();

// Why make_cuda_devices gives none: "no NVIDIA driver", "no GPU", ...; empty when it gives some.
std::string why_no_device();

}  // namespace tandem::cuda
