// The CPU as a host with counted allocations, a set amount of memory, and set durations of runs in simulated
// time.
#pragma once

#include <algorithm>
#include <functional>
#include <map>

#include "cpu/cpu_device.h"
#include "support/forwarding_device.h"

namespace tandem::test {

struct MeteredHostOptions {
  size_t memory_bytes = size_t{1} << 40;
  std::function<double(const Segment&, const StepShape&)> run_s;  // none: runs take no time
};

class MeteredHost final : public WatchedDevice {
 public:
  explicit MeteredHost(const MeteredHostOptions& options = {})
      : WatchedDevice(cpu::make_cpu_device({1, 1})), options_(options) {}

  MemoryInfo memory_info() const override {
    return {options_.memory_bytes - used_bytes_, options_.memory_bytes};
  }
  DevicePtr alloc(size_t n_bytes) override {
    const DevicePtr address = WatchedDevice::alloc(n_bytes);
    allocations_[address] = n_bytes;
    used_bytes_ += n_bytes;
    peak_bytes_ = std::max(peak_bytes_, used_bytes_);
    return address;
  }
  void free(DevicePtr address) override {
    used_bytes_ -= allocations_.at(address);
    allocations_.erase(address);
    WatchedDevice::free(address);
  }

  // For checks in tests. Scratch is not counted.
  size_t used_bytes() const { return used_bytes_; }
  size_t peak_bytes() const { return peak_bytes_; }
  double host_s = 0;  // simulated

 private:
  void ran(const Segment& segment, const StepShape& shape) override {
    if (options_.run_s) host_s += options_.run_s(segment, shape);
  }

  MeteredHostOptions options_;
  std::map<DevicePtr, size_t> allocations_;
  size_t used_bytes_ = 0, peak_bytes_ = 0;
};

}  // namespace tandem::test
