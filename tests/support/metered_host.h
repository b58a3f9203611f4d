// The CPU as a host with counted allocations, a set amount of memory, and set durations of runs in simulated
// time.
#pragma once

#include <algorithm>
#include <functional>
#include <map>

#include "cpu/cpu_device.h"

namespace tandem::test {

struct MeteredHostOptions {
  size_t memory_bytes = size_t{1} << 40;
  std::function<double(const Segment&, const StepShape&)> run_s;  // none: runs take no time
};

class MeteredHost final : public Device {
 public:
  explicit MeteredHost(const MeteredHostOptions& options = {})
      : options_(options), cpu_(cpu::make_cpu_device({1, 1})) {}

  const DeviceInfo& info() const override { return cpu_->info(); }
  std::string why_unsupported(const Graph& graph, const Node& node) const override {
    return cpu_->why_unsupported(graph, node);
  }
  size_t weight_bytes(const Weight& weight) const override { return cpu_->weight_bytes(weight); }
  size_t scratch_bytes(const Segment& segment) override { return cpu_->scratch_bytes(segment); }
  MemoryInfo memory_info() override { return {options_.memory_bytes - used_bytes_, options_.memory_bytes}; }
  DevicePtr alloc(size_t n_bytes) override {
    const DevicePtr address = cpu_->alloc(n_bytes);
    allocations_[address] = n_bytes;
    used_bytes_ += n_bytes;
    peak_bytes_ = std::max(peak_bytes_, used_bytes_);
    return address;
  }
  void free(DevicePtr address) override {
    used_bytes_ -= allocations_.at(address);
    allocations_.erase(address);
    cpu_->free(address);
  }
  void upload(DevicePtr to, const Weight& weight) override { cpu_->upload(to, weight); }
  void copy_in(DevicePtr to, const void* from, size_t n) override { cpu_->copy_in(to, from, n); }
  void copy_out(void* to, DevicePtr from, size_t n) override { cpu_->copy_out(to, from, n); }
  void copy_within(DevicePtr to, DevicePtr from, size_t n) override { cpu_->copy_within(to, from, n); }
  Event record() override { return cpu_->record(); }
  void wait(Event event) override { cpu_->wait(event); }

  std::unique_ptr<Plan> compile(const Segment& segment) override {
    auto plan = std::make_unique<TimedPlan>();
    plan->inner = cpu_->compile(segment);
    plan->segment = segment;
    return plan;
  }
  void run(Plan& plan, const StepShape& shape) override {
    const auto& timed = static_cast<TimedPlan&>(plan);
    cpu_->run(*timed.inner, shape);
    if (options_.run_s) host_s += options_.run_s(timed.segment, shape);
  }

  // For checks in tests. Scratch is not counted.
  size_t used_bytes() const { return used_bytes_; }
  size_t peak_bytes() const { return peak_bytes_; }
  double host_s = 0;  // simulated

 private:
  struct TimedPlan final : Plan {
    std::unique_ptr<Plan> inner;
    Segment segment;  // the caller's, for its duration
  };
  MeteredHostOptions options_;
  std::unique_ptr<Device> cpu_;
  std::map<DevicePtr, size_t> allocations_;
  size_t used_bytes_ = 0, peak_bytes_ = 0;
};

}  // namespace tandem::test
