// Collectives: what devices of one process do together. An executor calls them in the order of its schedule, between
// segments; a device takes its part in the order of its own work.
//
// Those over host memory work with any devices; those of NCCL, between CUDA devices, are faster.
//
// One thread calls. Functions throw Error(io) that names a device which does not answer within the limit, or says what a
// library has reported, and what a device's copies throw. After the former two no further call is possible: is_lost() is true.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "device/device.h"

namespace tandem {

// A device's part. Rows are F32 and contiguous.
struct CollectivePart {
  Device* device = nullptr;
  DevicePtr in = nullptr;      // null: it adds nothing, or has no columns
  DevicePtr out = nullptr;     // null: it has no use for the result; may be `in` of an all_reduce
  size_t n_cols = 0;           // of `in`
  WorkQueue* queue = nullptr;  // the order in which it takes part; null: the device's own

  WorkQueue& order() const { return queue ? *queue : *device; }
};

inline constexpr double kUsualLimitS = 60;

class Collectives {
 public:
  explicit Collectives(double limit_s) : limit_s_(limit_s) {}
  virtual ~Collectives() = default;
  virtual std::string_view name() const = 0;

  // Sums `in` of all parts into every `out`, n_rows rows. At least one part has some; all have the same columns.
  void all_reduce(std::span<const CollectivePart> parts, size_t n_rows) {
    begin_all_reduce(parts, n_rows);
    end_all_reduce();
  }
  // The same in two calls. Several sums in queues may be begun before the first of them ends; they end in the same order, and
  // all of them before anything else is summed or joined. What a device is given in another order between the calls goes on
  // beside the sum; parts on the host are read and written by the second one.
  virtual void begin_all_reduce(std::span<const CollectivePart> parts, size_t n_rows) = 0;
  // Returns the event of each part's queue at which the sum is there, 0 for parts without one; valid until the next call.
  virtual std::span<const Event> end_all_reduce() = 0;
  // After a failure: no sum that was begun will end.
  virtual void abandon() {}
  // Joins the columns of all parts, in their order, in every `out`.
  virtual void all_gather(std::span<const CollectivePart> parts, size_t n_rows) = 0;

  // Waits until the device has reached an event of the queue, or of its own order, no longer than the limit or until check()
  // throws; `what` begins the message.
  void wait(const Device& device, WorkQueue& queue, Event event, std::string_view what);
  void wait(Device& device, Event event, std::string_view what) { wait(device, device, event, what); }
  // Whether a device did not answer, or what it does may never end: nobody may wait for it.
  virtual bool is_lost() const { return is_lost_; }

 protected:
  // Throws if what devices do now has failed in a way that their events do not show.
  virtual void check([[maybe_unused]] std::string_view what) {}
  void set_lost() { is_lost_ = true; }
  double limit_s() const { return limit_s_; }

 private:
  double limit_s_;
  bool is_lost_ = false;
};

// Each part's `in` goes to host memory over the device's link, and the result to every `out`; the host adds, part by part in
// their order, so results do not depend on who is first. A link carries n_rows * n_cols * 4 bytes for each `in` and for each
// `out`. The host is one of the devices without a link.
// `check`, if any, is called while it waits, and may throw.
using CollectivesCheck = std::function<void(std::string_view what)>;
std::unique_ptr<Collectives> make_host_collectives(double limit_s = kUsualLimitS,
                                                   CollectivesCheck check = {});
// Sums go from GPU to GPU, in the order of their streams, without the host; what joins columns goes over host memory.
// Throws Error(io) that says what is missing (nccl_library.h), or what NCCL reports.
std::unique_ptr<Collectives> make_nccl_collectives(std::span<Device* const> devices,
                                                   double limit_s = kUsualLimitS);
// NCCL's for two CUDA devices or more, if it can be loaded; otherwise over host memory, with a warning.
std::unique_ptr<Collectives> best_collectives(std::span<Device* const> devices);

}  // namespace tandem
