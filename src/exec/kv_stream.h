// KvStream: caches that live in host memory and are read on a device. For every step the blocks in use of a
// layer are brought into a slot of the device while the layers before it compute; attention runs there; and
// the blocks that the step wrote to go back. Two slots a device, each as large as the cache of a layer. Owns
// the slots.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "device/device.h"
#include "exec/placement.h"

namespace tandem {

// Bytes of both pools of a layer's cache, and of one of its blocks.
size_t kv_pool_bytes(const KvLayer& layer);
size_t kv_block_bytes(const KvLayer& layer);

// Slots on a device for the layers that the placement brings there. `layers` are the caches by layer, for
// their shapes.
struct KvSlotNeeds {
  size_t n_slots = 0;
  size_t slot_bytes = 0;

  size_t n_bytes() const { return n_slots * slot_bytes; }
};
KvSlotNeeds kv_slot_needs(const Placement& placement, std::span<const KvLayer> layers, DeviceId device);

class KvStream {
 public:
  // host: the caches in host memory, by layer. Throws Error(out_of_memory).
  KvStream(std::span<Device* const> devices, const Placement& placement, std::span<const KvLayer> host);
  ~KvStream();
  KvStream(const KvStream&) = delete;
  KvStream& operator=(const KvStream&) = delete;

  // The layer's cache as the device sees it: in its slot.
  KvLayer view(int layer) const;
  size_t n_bytes(DeviceId device) const { return slots_[device.index()].needs.n_bytes(); }

  // A step that reads the blocks of block_table and writes to `slots` of the cache, both as in its inputs.
  void begin(std::span<const int32_t> block_table, std::span<const int32_t> slots);
  // What is issued to the layer's device from now on finds its cache complete.
  void join(int layer);
  // The layer has been computed: what it wrote goes back, and the slot to the next one.
  void done(int layer);
  // All that was written is in host memory.
  void end();

 private:
  struct Layer {
    std::optional<GpuId> to;  // none: not brought anywhere
    size_t slot = 0;
    int next = -1;  // the layer that has the slot afterwards
    Event fetched = 0;
  };
  struct Slots {
    KvSlotNeeds needs;
    std::vector<DevicePtr> base;
    std::vector<int> first;  // layers that a step begins with
  };
  void fetch(int layer, Event after);
  void free_all();

  std::span<Device* const> devices_;
  std::span<const KvLayer> host_;
  std::vector<Layer> layers_;
  std::vector<Slots> slots_;      // [device]
  std::vector<Weight> parts_;     // [2 * layer] what is under way: keys, values
  int64_t n_blocks_ = 0;          // of a step: blocks from the first to the last in use
  std::vector<int32_t> written_;  // of a step: blocks
};

}  // namespace tandem
