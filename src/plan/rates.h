// How fast devices are: measured on those that are here, by running the ops that matter; remembered for those
// that were measured before.
#pragma once

#include <span>
#include <vector>

#include "plan/rates_cache.h"

namespace tandem {

// Measures a device in some seconds, on memory of its own that is free again afterwards. What its
// kernels do with weights of a common type is what counts, not what the hardware could. Throws what the
// device throws.
DeviceRates measure_rates(Device& device);

// What the CPU and the device's bus get of host memory when both read it. The host's kernels are as in
// measure_rates().
double measure_shared_memory(Device& host, Device& device, const DeviceRates& rates);

// The rates of all devices (the first one the host's), each measured only if the cache does not know it.
// Empty when there is no memory to measure with.
std::vector<DeviceRates> rates_of(std::span<Device* const> devices, const RatesCache& cache);

}  // namespace tandem
