// A GPU that is not here, to plan for: it has sizes, but no memory and runs nothing.
#pragma once

#include <functional>

#include "device/device.h"

namespace tandem {

class ImaginedDevice final : public Device {
 public:
  // weight_bytes: how the kernels of such a device want a weight; it decides about bytes only.
  using WeightBytes = std::function<size_t(const Weight&)>;
  ImaginedDevice(std::string name, size_t memory_bytes, WeightBytes weight_bytes);

  const DeviceInfo& info() const override { return info_; }
  std::string why_unsupported(const Graph&, const Node&) const override { return ""; }
  size_t weight_bytes(const Weight& weight) const override { return weight_bytes_(weight); }
  // An estimate: the activations of the widest product, quantized.
  size_t scratch_bytes(const Segment& segment) override;
  MemoryInfo memory_info() override { return {memory_bytes_, memory_bytes_}; }

  // Nobody calls these: Error(bug).
  DevicePtr alloc(size_t) override { refuse(); }
  void free(DevicePtr) override { refuse(); }
  void upload(DevicePtr, const Weight&) override { refuse(); }
  void copy_in(DevicePtr, const void*, size_t) override { refuse(); }
  void copy_out(void*, DevicePtr, size_t) override { refuse(); }
  void copy_within(DevicePtr, DevicePtr, size_t) override { refuse(); }
  Event record() override { refuse(); }
  void wait(Event) override { refuse(); }
  std::unique_ptr<Plan> compile(const Segment&) override { refuse(); }
  void run(Plan&, const StepShape&) override { refuse(); }

 private:
  [[noreturn]] void refuse() const;

  DeviceInfo info_;
  size_t memory_bytes_;
  WeightBytes weight_bytes_;
};

}  // namespace tandem
