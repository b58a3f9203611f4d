// The simulated device: the CPU's kernels behind a separate address space. Its addresses point into
// inaccessible memory, so the host faults if it uses them; only the device knows the real memory. Copies and
// runs are done in order by a separate thread, copies at a set bandwidth; fetches by a second thread, and the copies of its
// side queue by a third.
// Allocations, copies and runs can be made to fail.
//
// In addition to real time there is simulated time: from the duration of each copy and run, and from their
// dependencies, the device computes when each would start and end, independent of the load of the machine.
//
// A fetch into memory that a run may still read, because it waits for an earlier event only, ends the test.
// See tests/README.md.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "cpu/cpu_device.h"
#include "device/device.h"

namespace tandem::test {

// A fetch on the bus, in simulated time.
struct SimTraffic {
  double begin, end;
};

// Simulated time, in seconds. Devices that work together share the host's clock.
struct SimTimes {
  double bus_bytes_per_s = 0;                                     // 0: copies take no time
  double pinned_bytes_per_s = 0;                                  // fetches from pinned memory; 0: as all copies
  std::function<double(const Segment&, const StepShape&)> run_s;  // none: runs take no time
  double* host_s = nullptr;                                       // the host's clock; null: a separate clock
  std::vector<SimTraffic>* traffic = nullptr;                     // records every fetch
};

struct SimOptions {
  std::string name = "SIM0";
  size_t memory_bytes = size_t{1} << 30;
  double copy_bytes_per_s = 0;  // 0: unlimited
  PinnedBytes pinned = {};      // what it claims to pin; it allocates none
  int n_threads = 1;
  cpu::Isa isa = cpu::best_isa();
  const cpu::LinearKernels* products = nullptr;  // null: those of `isa`
  int64_t fail_alloc = -1;  // the n-th alloc (from 0) throws Error(out_of_memory)
  int64_t fail_copy = -1;   // the n-th copy (in, out or fetch) throws Error(io) at the next wait
  int64_t fail_pin = -1;    // the n-th range and all later ones are not pinned
  int64_t fail_run = -1;    // the n-th run throws Error(out_of_memory) at the next wait
  int64_t hang_run = -1;    // the n-th run does not end before release()
  SimTimes times;
};

class SimDevice final : public Device {
 public:
  explicit SimDevice(const SimOptions& options);
  ~SimDevice() override;

  const DeviceInfo& info() const override { return info_; }
  std::string why_unsupported(const Graph& graph, const Node& node) const override;
  DTypeSupport dtype_support(DType dtype) const override { return cpu_->dtype_support(dtype); }
  size_t weight_bytes(const Weight& weight) const override { return weight.n_bytes(); }
  size_t scratch_bytes(const Segment&) const override { return 0; }  // the kernels' scratch is the host's
  PinnedBytes pinned_bytes() const override { return options_.pinned; }
  MemoryInfo memory_info() const override;
  DevicePtr alloc(size_t n_bytes) override;
  void free(DevicePtr address) override;
  void upload(DevicePtr to, const Weight& weight) override { copy_in(to, weight.data, weight.n_bytes()); }
  void copy_in(DevicePtr to, const void* from, size_t n_bytes) override;
  void copy_out(void* to, DevicePtr from, size_t n_bytes) override;
  void copy_within(DevicePtr to, DevicePtr from, size_t n_bytes) override;
  Event record() override;
  void wait(Event event) override;
  // For all that was asked for, fetches that nobody has joined too; throws what has failed.
  void wait_for_all();
  bool has_reached(Event event) override;
  SideQueue* side_queue() override { return &side_; }
  Event fetch(DevicePtr to, const Weight& weight, Event after) override;
  void join(Event fetched) override;
  std::shared_ptr<const void> pin(std::span<const std::byte> bytes) override;
  std::unique_ptr<Executable> compile(const Segment& segment) override;
  void run(Executable& executable, const StepShape& shape) override;

  void release();  // ends a run that hangs

  // For checks in tests.
  size_t used_bytes() const { return used_bytes_; }
  size_t peak_bytes() const { return peak_bytes_; }
  int64_t n_allocs() const { return n_allocs_; }
  int64_t n_copies() const { return n_copies_; }
  int64_t n_runs() const { return n_runs_; }
  int64_t n_side_copies() const { return n_side_copies_; }  // of those, in the side queue
  uint64_t copied_bytes() const { return copied_bytes_; }
  uint64_t fetched_bytes() const { return fetched_bytes_; }  // of those, fetched
  uint64_t pinned_bytes_fetched() const { return pinned_fetched_; }  // of those, from pinned memory
  size_t n_pinned() const { return pinned_.size(); }                 // ranges
  double host_s() const { return *host_s_; }                         // simulated

 private:
  struct Allocation {
    std::byte* real;
    size_t n_bytes;
  };

  // A queue of work with its own thread.
  struct Order {
    std::deque<std::function<void()>> queue;
    uint64_t n_issued = 0, n_done = 0;
    uint64_t n_lost = 0;  // issued until a failure was reported
    std::thread thread;
    double s = 0;                // simulated: when all issued work is done
    std::map<Event, double> at;  // simulated: when events are reached
  };

  class Side final : public SideQueue {
   public:
    explicit Side(SimDevice& device) : device_(device) {}
    void copy_in(DevicePtr to, const void* from, size_t n_bytes) override {
      device_.copy_in(device_.sums_, to, from, n_bytes);
    }
    void copy_out(void* to, DevicePtr from, size_t n_bytes) override {
      device_.copy_out(device_.sums_, to, from, n_bytes);
    }
    Event record() override { return device_.record(device_.sums_); }
    void wait(Event event) override { device_.wait(device_.sums_, event); }
    bool has_reached(Event event) override { return device_.has_reached(device_.sums_, event); }
    void follow() override {
      device_.put_behind(device_.sums_, device_.runs_, device_.record(device_.runs_));
    }
    void lead(Event event) override { device_.put_behind(device_.runs_, device_.sums_, event); }

   private:
    SimDevice& device_;
  };

  void copy_in(Order& order, DevicePtr to, const void* from, size_t n_bytes);
  void copy_out(Order& order, void* to, DevicePtr from, size_t n_bytes);
  Event record(Order& order);
  void wait(Order& order, Event event);
  bool has_reached(Order& order, Event event);
  void put_behind(Order& order, Order& other, Event event);
  std::byte* real(DevicePtr address, size_t n_bytes) const;  // aborts the test if out of bounds
  void enqueue(Order& order, double seconds, std::function<void()> work);
  void block_until(Order& order, Event event);  // called on the other queue's thread
  void copy(void* to, const void* from, size_t n_bytes);
  void check_unread(const std::byte* to, size_t n_bytes, Event after) const;
  double bus_s(size_t n_bytes) const;
  bool is_pinned(const std::byte* begin, size_t n_bytes) const;
  void work_off(Order& order);

  SimOptions options_;
  DeviceInfo info_;
  std::unique_ptr<Device> cpu_;
  std::map<DevicePtr, Allocation> allocations_;
  size_t used_bytes_ = 0, peak_bytes_ = 0;
  int64_t n_allocs_ = 0, n_copies_ = 0, n_side_copies_ = 0, n_runs_ = 0;
  uint64_t copied_bytes_ = 0, fetched_bytes_ = 0, pinned_fetched_ = 0;
  int64_t n_pins_ = 0;
  std::multimap<const std::byte*, size_t> pinned_;  // bytes by begin
  struct Read {
    Event run;
    const std::byte* begin;
    size_t n_bytes;
  };
  std::deque<Read> reads_;  // of weights, by runs that nobody has waited for

  std::mutex mutex_;
  std::condition_variable changed_;
  Order runs_, fetches_, sums_;
  Side side_{*this};
  std::exception_ptr failure_;
  bool stop_ = false, is_released_ = false;
  double own_host_s_ = 0;
  double* host_s_ = &own_host_s_;
};

}  // namespace tandem::test
