// A device that is not there: the CPU's kernels behind an address space of their own. The addresses that it gives out
// point into memory that nobody may touch, so any use of them by the host faults at once; the real memory lies
// elsewhere and only the device knows where. Copies run on a thread of their own, in order with the runs, as fast as
// a set bandwidth, and allocations, copies and runs can be made to fail.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "cpu/cpu_device.h"
#include "device/device.h"

namespace tandem::test {

struct SimOptions {
  std::string name = "SIM0";
  size_t memory_bytes = size_t{1} << 30;
  double copy_bytes_per_s = 0;      // 0: as fast as it goes
  int n_threads = 1;
  cpu::Isa isa = cpu::best_isa();
  int64_t fail_alloc = -1;          // the how-manyth alloc (from 0) throws Error(out_of_memory)
  int64_t fail_copy = -1;           // the how-manyth copy (in or out) throws Error(io), when it is waited for
};

class SimDevice final : public Device {
 public:
  explicit SimDevice(const SimOptions& options);
  ~SimDevice() override;

  const DeviceInfo& info() const override { return info_; }
  std::string why_unsupported(const Graph& graph, const Node& node) const override;
  size_t weight_bytes(const Weight& weight) const override { return weight.n_bytes(); }
  size_t scratch_bytes(const Segment&) override { return 0; }  // the kernels' scratch is the host's
  MemoryInfo memory_info() override;
  DevicePtr alloc(size_t n_bytes) override;
  void free(DevicePtr address) override;
  void upload(DevicePtr to, const Weight& weight) override { copy_in(to, weight.data, weight.n_bytes()); }
  void copy_in(DevicePtr to, const void* from, size_t n_bytes) override;
  void copy_out(void* to, DevicePtr from, size_t n_bytes) override;
  void copy_within(DevicePtr to, DevicePtr from, size_t n_bytes) override;
  Event record() override;
  void wait(Event event) override;
  std::unique_ptr<Plan> compile(const Segment& segment) override;
  void run(Plan& plan, const StepShape& shape) override;

  // What the tests look at.
  size_t used_bytes() const { return used_bytes_; }
  size_t peak_bytes() const { return peak_bytes_; }
  int64_t n_allocs() const { return n_allocs_; }
  int64_t n_copies() const { return n_copies_; }
  uint64_t copied_bytes() const { return copied_bytes_; }

 private:
  struct Allocation {
    std::byte* real;
    size_t n_bytes;
  };

  std::byte* real(DevicePtr address, size_t n_bytes) const;  // aborts the test when out of bounds
  void enqueue(std::function<void()> work);
  void copy(void* to, const void* from, size_t n_bytes);
  void queue_main();

  SimOptions options_;
  DeviceInfo info_;
  std::unique_ptr<Device> cpu_;
  std::map<DevicePtr, Allocation> allocations_;
  size_t used_bytes_ = 0, peak_bytes_ = 0;
  int64_t n_allocs_ = 0, n_copies_ = 0;
  uint64_t copied_bytes_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  uint64_t n_issued_ = 0, n_done_ = 0;
  std::exception_ptr failure_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tandem::test
