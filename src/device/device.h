// Device: answers a DeviceModel's questions and does the work: memory, copies, events, and running segments
// of graphs. All code above devices is written against this. A device owns an address space; only that device
// may dereference its addresses, unless its info says that it works on host memory.
//
// All calls on one device come from one thread. Copies and runs are asynchronous, in the order they are
// issued; record() marks a point in that order, wait() blocks the host until it is reached, and host memory
// that is copied from or to is in use until then. Functions throw Error(out_of_memory | io | bug), wait()
// also for what was issued earlier and has failed since.
#pragma once

#include <memory>

#include "device/device_model.h"

namespace tandem {

// A compiled segment; only the device that made it knows what is inside.
class Executable {
 public:
  virtual ~Executable() = default;
};

using Event = uint64_t;

class Device : public DeviceModel {
 public:
  virtual DevicePtr alloc(size_t n_bytes) = 0;  // 64-byte aligned at least; never null
  virtual void free(DevicePtr address) = 0;
  // Brings a weight in, in whatever layout this device's kernels like; `to` has weight_bytes(weight). Done
  // when it returns.
  virtual void upload(DevicePtr to, const Weight& weight) = 0;
  virtual void copy_in(DevicePtr to, const void* from, size_t n_bytes) = 0;  // host to device
  virtual void copy_out(void* to, DevicePtr from, size_t n_bytes) = 0;       // device to host
  virtual void copy_within(DevicePtr to, DevicePtr from, size_t n_bytes) = 0;
  virtual Event record() = 0;
  virtual void wait(Event event) = 0;

  // Weights that do not stay are brought in beside the runs: fetch() is upload() in an order of its own. It
  // begins once `after`, an event of record(), is reached; what is issued after join(fetch()) begins when the
  // fetch is complete. The weight's bytes and `to` are in use until then. Failures are thrown as those of
  // upload() are. A device with only one order does it all in that, as here.
  virtual Event fetch(DevicePtr to, const Weight& weight, [[maybe_unused]] Event after) {
    upload(to, weight);
    return 0;
  }
  virtual void join([[maybe_unused]] Event fetched) {}

  virtual std::unique_ptr<Executable> compile(const Segment& segment) = 0;
  virtual void run(Executable& executable, const StepShape& shape) = 0;
};

}  // namespace tandem
