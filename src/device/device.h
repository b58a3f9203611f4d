// Device: a DeviceModel that also does the work: memory, copies, events, and running segments of graphs.
// All code above devices is written against this interface. A device owns an address space; only that
// device may dereference its addresses, unless its info says host_memory.
//
// All calls on one device come from one thread. Copies and runs are asynchronous and execute in the order
// of issue. record() marks a point in that order, and wait() blocks the host until the device reaches it;
// until then, host memory that is copied from or to stays in use. Functions throw Error(out_of_memory | io
// | bug); wait() also throws for earlier work that has failed since.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "device/device_model.h"

namespace tandem {

// A compiled segment. Its contents are private to the device that made it.
class Executable {
 public:
  virtual ~Executable() = default;
};

using Event = uint64_t;

// A device's queue of work, as libraries of its vendor take it.
struct NativeQueue {
  enum class Api : uint8_t { cuda };
  Api api = Api::cuda;
  int number = 0;          // the API's, of the device
  void* stream = nullptr;  // cudaStream_t; for what is issued before the next call of the device
};

// An order in which a device works: copies, and points between them. Addresses are the device's.
class WorkQueue {
 public:
  virtual ~WorkQueue() = default;
  virtual void copy_in(DevicePtr to, const void* from, size_t n_bytes) = 0;  // host to device
  virtual void copy_out(void* to, DevicePtr from, size_t n_bytes) = 0;       // device to host
  virtual Event record() = 0;
  virtual void wait(Event event) = 0;
  // Returns whether the device has reached an event, without waiting; what has failed, wait() reports. The default is for
  // devices that never keep the host waiting.
  virtual bool has_reached([[maybe_unused]] Event event) { return true; }
  // Returns none for devices that no such library knows.
  virtual std::optional<NativeQueue> native_queue() { return std::nullopt; }
};

// A second order beside that of a device's runs, for what goes over links while it computes.
class SideQueue : public WorkQueue {
 public:
  // What is issued here from now on starts once the device has done what was issued to it so far.
  virtual void follow() = 0;
  // What is issued to the device from now on starts once this queue has reached `event`, of record().
  virtual void lead(Event event) = 0;
};

// Its own order is that of its runs.
class Device : public DeviceModel, public WorkQueue {
 public:
  virtual DevicePtr alloc(size_t n_bytes) = 0;  // at least 64-byte aligned; never null
  virtual void free(DevicePtr address) = 0;
  // Uploads a weight in the layout of this device's kernels; `to` has room for weight_bytes(weight).
  // Complete on return.
  virtual void upload(DevicePtr to, const Weight& weight) = 0;
  virtual void copy_within(DevicePtr to, DevicePtr from, size_t n_bytes) = 0;
  // Returns the queue beside its runs, the same in every call; null if it has none.
  virtual SideQueue* side_queue() { return nullptr; }

  // Uploads a streamed weight in parallel with runs: fetch() is upload() in a queue of its own. It starts
  // once the device reaches `after`, an event of record(). Work issued after join(fetch()) starts once the
  // fetch is complete. The weight's bytes and `to` are in use until then. Throws as upload() does. The
  // default is for devices with a single queue.
  virtual Event fetch(DevicePtr to, const Weight& weight, [[maybe_unused]] Event after) {
    upload(to, weight);
    return 0;
  }
  virtual void join([[maybe_unused]] Event fetched) {}
  // Page-locks host memory, not a mapped file, until the result is destroyed, which the device outlives: fetches from there need
  // no copy by the CPU. Returns null if the device has no use for that, or the system refuses.
  virtual std::shared_ptr<const void> pin([[maybe_unused]] std::span<const std::byte> bytes) { return nullptr; }

  // Closes blocks of a layer with a grouped dtype (KvLayer): quantizes their F16 rows. What the table of open blocks says is
  // the caller's to change. The default copies them to the host and back, and is complete on return.
  virtual void close_groups(const KvLayer& layer, std::span<const OpenBlock> blocks);

  virtual std::unique_ptr<Executable> compile(const Segment& segment) = 0;
  virtual void run(Executable& executable, const StepShape& shape) = 0;
};

}  // namespace tandem
