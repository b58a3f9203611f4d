// WeightResidency: the addresses of weights on devices. A device that works on host memory uses the mapped
// file; any other device gets one copy, shared by all graphs. Owns the copies.
#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "device/device.h"
#include "exec/weight_slices.h"

namespace tandem {

class WeightResidency {
 public:
  explicit WeightResidency(std::span<Device* const> devices);
  ~WeightResidency();
  WeightResidency(const WeightResidency&) = delete;
  WeightResidency& operator=(const WeightResidency&) = delete;

  // Returns the weight's address on the device; uploads it first if needed. `slices` has it if it is one. Throws
  // Error(out_of_memory | io).
  DevicePtr address(DeviceId device, const Weight& weight, WeightSlices& slices);

  // Takes memory for a weight whose contents come later, bit by bit.
  void reserve(DeviceId device, const Weight& weight);

  size_t n_bytes(DeviceId device) const { return n_bytes_[device.index()]; }  // uploaded so far

 private:
  std::span<Device* const> devices_;
  std::vector<std::unordered_map<const Weight*, DevicePtr>> copies_;  // [device]
  std::vector<size_t> n_bytes_;
};

}  // namespace tandem
