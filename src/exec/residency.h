// Where the weights are: on a device that works on host memory they are used where the file is mapped; to any
// other they are copied once, and shared by all graphs. Owns the copies.
#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "device/device.h"

namespace tandem {

class WeightResidency {
 public:
  explicit WeightResidency(std::span<Device* const> devices);
  ~WeightResidency();
  WeightResidency(const WeightResidency&) = delete;
  WeightResidency& operator=(const WeightResidency&) = delete;

  // The weight's address on the device, after copying it there if need be. Throws Error(out_of_memory | io).
  DevicePtr address(DeviceId device, const Weight& weight);

  size_t n_bytes(DeviceId device) const { return n_bytes_[device.index()]; }  // copied there so far

 private:
  std::span<Device* const> devices_;
  std::vector<std::unordered_map<const Weight*, DevicePtr>> copies_;  // [device]
  std::vector<size_t> n_bytes_;
};

}  // namespace tandem
