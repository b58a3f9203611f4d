// Devices that are another device with something changed: they override what differs.
#pragma once

#include <memory>

#include "device/device.h"

namespace tandem::test {

class ForwardingDevice : public Device {
 public:
  explicit ForwardingDevice(std::unique_ptr<Device> inner) : inner_(std::move(inner)) {}

  const DeviceInfo& info() const override { return inner_->info(); }
  std::string why_unsupported(const Graph& graph, const Node& node) const override {
    return inner_->why_unsupported(graph, node);
  }
  DTypeSupport dtype_support(DType dtype) const override { return inner_->dtype_support(dtype); }
  MemoryInfo memory_info() const override { return inner_->memory_info(); }
  size_t weight_bytes(const Weight& weight) const override { return inner_->weight_bytes(weight); }
  size_t scratch_bytes(const Segment& segment) const override { return inner_->scratch_bytes(segment); }
  int64_t full_product_rows() const override { return inner_->full_product_rows(); }
  PinnedBytes pinned_bytes() const override { return inner_->pinned_bytes(); }

  DevicePtr alloc(size_t n_bytes) override { return inner_->alloc(n_bytes); }
  void free(DevicePtr address) override { inner_->free(address); }
  void upload(DevicePtr to, const Weight& weight) override { inner_->upload(to, weight); }
  void copy_in(DevicePtr to, const void* from, size_t n) override { inner_->copy_in(to, from, n); }
  void copy_out(void* to, DevicePtr from, size_t n) override { inner_->copy_out(to, from, n); }
  void copy_within(DevicePtr to, DevicePtr from, size_t n) override { inner_->copy_within(to, from, n); }
  Event record() override { return inner_->record(); }
  void wait(Event event) override { inner_->wait(event); }
  bool has_reached(Event event) override { return inner_->has_reached(event); }
  SideQueue* side_queue() override { return inner_->side_queue(); }
  Event fetch(DevicePtr to, const Weight& weight, Event after) override {
    return inner_->fetch(to, weight, after);
  }
  void join(Event fetched) override { inner_->join(fetched); }
  std::shared_ptr<const void> pin(std::span<const std::byte> bytes) override { return inner_->pin(bytes); }
  std::unique_ptr<Executable> compile(const Segment& segment) override { return inner_->compile(segment); }
  void run(Executable& executable, const StepShape& shape) override { inner_->run(executable, shape); }

 private:
  std::unique_ptr<Device> inner_;
};

// Remembers what a compiled segment was made of, and tells after each run.
class WatchedDevice : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;

  std::unique_ptr<Executable> compile(const Segment& segment) override {
    auto executable = std::make_unique<Watched>();
    executable->segment = segment;
    executable->inner = ForwardingDevice::compile(segment);
    return executable;
  }
  void run(Executable& executable, const StepShape& shape) override {
    const auto& own = static_cast<Watched&>(executable);
    ForwardingDevice::run(*own.inner, shape);
    ran(own.segment, shape);
  }

 protected:
  virtual void ran(const Segment& segment, const StepShape& shape) = 0;

 private:
  struct Watched final : Executable {
    Segment segment;  // the caller's
    std::unique_ptr<Executable> inner;
  };
};

}  // namespace tandem::test
