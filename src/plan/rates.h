// The speed of devices: measured by running the ops that matter, and cached.
#pragma once

#include <span>
#include <vector>

#include "plan/rates_cache.h"

namespace tandem {

// Measures a device in some seconds, with memory that it frees afterwards: the speed of its kernels with
// weights of a common type, not that of the hardware. Throws what the device throws.
DeviceRates measure_rates(Device& device);

// Measures the bandwidth of host memory when the CPU and the device's bus both read it. The host's kernels
// are as in measure_rates().
double measure_shared_memory(Device& host, Device& device, const DeviceRates& rates);

// Returns the rates of all devices, the host first. Measures those that are not in the cache. Empty if
// there is no memory to measure with.
std::vector<DeviceRates> rates_of(std::span<Device* const> devices, const RatesCache& cache);

}  // namespace tandem
