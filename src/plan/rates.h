// How fast devices are: measured on those that are here, by running the ops that matter; remembered for those
// that were measured before; from a table for GPUs that one can only plan for.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/cost.h"

namespace tandem {

// Measures a device in a fraction of a second, on memory of its own that is free again afterwards. What its
// kernels do with weights of a common type is what counts, not what the hardware could. Throws what the
// device throws.
DeviceRates measure_rates(Device& device);

// Measurements of this machine, a line each in a file that several processes may use. A file that cannot be
// read or written, or a line that makes no sense, is as if nothing had been measured.
class RatesCache {
 public:
  // The usual place: tandem/rates under $XDG_CACHE_HOME, or under .cache in the home directory; empty: there
  // is none.
  static std::string usual_path();
  explicit RatesCache(std::string path) : path_(std::move(path)) {}

  std::optional<DeviceRates> find(const std::string& device) const;
  void remember(const std::string& device, const DeviceRates& rates) const;

 private:
  std::string path_;
};

// What the CPU and the device's bus get of host memory when both read it. The host's kernels are as in
// measure_rates().
double measure_shared_memory(Device& host, Device& device, const DeviceRates& rates);

// The rates of all devices (the first one the host's), each measured only if the cache does not know it.
// Empty when there is no memory to measure with.
std::vector<DeviceRates> rates_of(std::span<Device* const> devices, const RatesCache& cache);

// A GPU that `tandem plan` can be asked about.
struct KnownGpu {
  std::string_view name;  // "h100"
  double memory_gib = 0;
  DeviceRates rates;
};
std::span<const KnownGpu> known_gpus();
const KnownGpu* find_gpu(std::string_view name);  // null when there is none of that name

}  // namespace tandem
