// DeviceModel: answers questions about a device. The planner needs no more, so it can plan for a GPU that
// is not in this machine (plan/imagined_device.h). Device adds the work (device/device.h).
//
// Sizes are in bytes. Calls on one device come from one thread, but for those that the planner makes while it tries several
// placements at once: all but memory_info(). The functions change nothing that a later answer or run depends on, so they
// are const, but they are not free: scratch_bytes() lowers the segment, and the first memory_info() may open the driver's
// context, which takes memory itself. That is intended: a plan may only count on memory that is free with the context open.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "device/dtype_support.h"
#include "device/segment.h"

namespace tandem {

struct DeviceInfo {
  std::string name;          // "CPU", "SIM0": what users type, unique in a program
  std::string description;   // "Xeon ..., AVX512-VNNI, 2 threads"
  std::string backend;       // its kind, as in device/registry.h; "CPU" for the host
  bool host_memory = false;  // its addresses are host addresses: it uses weights where they are mapped
};

struct MemoryInfo {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
};

// Host memory that a device pins, which the system cannot take back: for copies as long as the device is open, for
// fetches from the first one on, and for copies of its side queue from the first one on.
struct PinnedBytes {
  size_t copies = 0;
  size_t fetches = 0;
  size_t side_copies = 0;
};

class DeviceModel {
 public:
  virtual ~DeviceModel() = default;
  virtual const DeviceInfo& info() const = 0;

  // Returns why this device cannot run the node, or an empty string if it can. Unsupported nodes run on the
  // host.
  virtual std::string why_unsupported(const Graph& graph, const Node& node) const = 0;
  // Returns what the device can do with weights of a dtype.
  virtual DTypeSupport dtype_support(DType dtype) const = 0;

  // Returns the memory at this moment. Throws Error(io) if the driver does not report it.
  virtual MemoryInfo memory_info() const = 0;
  // Returns the bytes that a weight takes here once uploaded; 0 on host memory, where it is used in place.
  virtual size_t weight_bytes(const Weight& weight) const = 0;
  // Returns the bytes of scratch that a segment of these nodes needs while it runs. A device has one
  // scratch buffer, as large as the largest segment compiled on it needs, and allocates it in compile().
  virtual size_t scratch_bytes(const Segment& segment) const = 0;
  // Returns the rows from which on a product runs at the device's usual speed; with fewer much of it is idle.
  virtual int64_t full_product_rows() const { return 1; }
  // Returns the host memory that the device pins.
  virtual PinnedBytes pinned_bytes() const { return {}; }
};

// The devices to plan for; [0] is the host. They outlive the list.
class DeviceModels {
 public:
  DeviceModels() = default;
  DeviceModels(std::initializer_list<const DeviceModel*> devices) : list_(devices) {}
  template <class D>  // D derives from DeviceModel
  DeviceModels(const std::vector<D*>& devices) : list_(devices.begin(), devices.end()) {}
  template <class D>
  DeviceModels(const std::vector<std::unique_ptr<D>>& devices) {
    for (const auto& device : devices) list_.push_back(device.get());
  }

  size_t size() const { return list_.size(); }
  const DeviceModel* operator[](size_t i) const { return list_[i]; }
  // Returns the memory of a device, at this moment or that of frozen().
  MemoryInfo memory(size_t i) const { return memory_.empty() ? list_[i]->memory_info() : memory_[i]; }
  // Returns the same devices with the memory of now, or of an earlier frozen(): for a search that asks often, and from
  // several threads.
  DeviceModels frozen() const {
    DeviceModels copy = *this;
    if (!memory_.empty()) return copy;
    for (const DeviceModel* device : list_) copy.memory_.push_back(device->memory_info());
    return copy;
  }
  auto begin() const { return list_.begin(); }
  auto end() const { return list_.end(); }

 private:
  std::vector<const DeviceModel*> list_;
  std::vector<MemoryInfo> memory_;  // [devices], or empty
};

}  // namespace tandem
