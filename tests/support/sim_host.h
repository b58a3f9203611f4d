// The host in simulated time: the CPU device, with durations of runs set by the test. Every run advances the
// clock shared with simulated devices (SimTimes::host_s).
#pragma once

#include <functional>

#include "cpu/cpu_device.h"
#include "device/device.h"

namespace tandem::test {

class SimHost final : public Device {
 public:
  // Seconds of a run that begins at `now`.
  using RunSeconds = std::function<double(const Segment&, const StepShape&, double now)>;
  SimHost(double& host_s, RunSeconds run_s) : host_s_(host_s), run_s_(std::move(run_s)) {}

  const DeviceInfo& info() const override { return cpu_->info(); }
  std::string why_unsupported(const Graph& graph, const Node& node) const override {
    return cpu_->why_unsupported(graph, node);
  }
  size_t weight_bytes(const Weight& weight) const override { return cpu_->weight_bytes(weight); }
  size_t scratch_bytes(const Segment& segment) override { return cpu_->scratch_bytes(segment); }
  MemoryInfo memory_info() override { return cpu_->memory_info(); }
  DevicePtr alloc(size_t n_bytes) override { return cpu_->alloc(n_bytes); }
  void free(DevicePtr address) override { cpu_->free(address); }
  void upload(DevicePtr to, const Weight& weight) override { cpu_->upload(to, weight); }
  void copy_in(DevicePtr to, const void* from, size_t n) override { cpu_->copy_in(to, from, n); }
  void copy_out(void* to, DevicePtr from, size_t n) override { cpu_->copy_out(to, from, n); }
  void copy_within(DevicePtr to, DevicePtr from, size_t n) override { cpu_->copy_within(to, from, n); }
  Event record() override { return cpu_->record(); }
  void wait(Event event) override { cpu_->wait(event); }

  std::unique_ptr<Plan> compile(const Segment& segment) override {
    auto plan = std::make_unique<Timed>();
    plan->segment = segment;
    plan->inner = cpu_->compile(segment);
    return plan;
  }
  void run(Plan& plan, const StepShape& shape) override {
    Timed& own = static_cast<Timed&>(plan);
    cpu_->run(*own.inner, shape);
    host_s_ += run_s_(own.segment, shape, host_s_);
  }

 private:
  struct Timed final : Plan {
    Segment segment;
    std::unique_ptr<Plan> inner;
  };

  double& host_s_;
  RunSeconds run_s_;
  std::unique_ptr<Device> cpu_ = cpu::make_cpu_device({1, 1});
};

}  // namespace tandem::test
