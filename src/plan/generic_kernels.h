// Which weights are computed with by way of floats, because the device where that happens has no kernels for
// their dtype (device/dtype_support.h).
#pragma once

#include <span>
#include <string>

#include "device/device_model.h"
#include "exec/placement.h"

namespace tandem {

// "generic kernels for TQ1_0 on CUDA0 (float rows; slower)"; empty when there are no such weights.
std::string generic_kernels(std::span<const Graph* const> graphs, const DeviceModels& devices,
                            const Placement& placement);

}  // namespace tandem
