// The host in simulated time: the CPU device, with durations of runs set by the test. Every run advances the
// clock shared with simulated devices (SimTimes::host_s).
#pragma once

#include <functional>

#include "cpu/cpu_device.h"
#include "support/forwarding_device.h"

namespace tandem::test {

class SimHost final : public WatchedDevice {
 public:
  // Seconds of a run that begins at `now`.
  using RunSeconds = std::function<double(const Segment&, const StepShape&, double now)>;
  SimHost(double& host_s, RunSeconds run_s)
      : WatchedDevice(cpu::make_cpu_device({1, 1})), host_s_(host_s), run_s_(std::move(run_s)) {}

 private:
  void ran(const Segment& segment, const StepShape& shape) override {
    host_s_ += run_s_(segment, shape, host_s_);
  }

  double& host_s_;
  RunSeconds run_s_;
};

}  // namespace tandem::test
