// A GPU that is not here, to plan for: it answers a planner's questions from its size alone.
#pragma once

#include <functional>

#include "device/device_model.h"

namespace tandem {

class ImaginedDevice final : public DeviceModel {
 public:
  // weight_bytes: how the kernels of such a device want a weight; support: which it has, null: those of all
  // dtypes.
  using WeightBytes = std::function<size_t(const Weight&)>;
  using Support = std::function<DTypeSupport(DType)>;
  ImaginedDevice(std::string name, size_t memory_bytes, WeightBytes weight_bytes, Support support = nullptr);

  const DeviceInfo& info() const override { return info_; }
  std::string why_unsupported(const Graph&, const Node&) const override { return ""; }
  DTypeSupport dtype_support(DType dtype) const override {
    return support_ ? support_(dtype) : DTypeSupport{KernelPath::own, KernelPath::own};
  }
  MemoryInfo memory_info() const override { return {memory_bytes_, memory_bytes_}; }
  size_t weight_bytes(const Weight& weight) const override { return weight_bytes_(weight); }
  // An estimate: the activations of the widest product, quantized, or what latent attention makes.
  size_t scratch_bytes(const Segment& segment) const override;
  // These two as of a CUDA device.
  int64_t full_product_rows() const override { return 128; }
  PinnedBytes pinned_bytes() const override { return {size_t{16} << 20, size_t{16} << 20, size_t{64} << 20}; }

 private:
  DeviceInfo info_;
  size_t memory_bytes_;
  WeightBytes weight_bytes_;
  Support support_;
};

}  // namespace tandem
