// WeightStream: device slots for streamed weights. A device has a few, all of one size. Owns the slots and
// fills them on request; the schedule decides the order.
//
// It remembers what each slot holds, across steps and programs, so a group that is still in its slot is not
// fetched again. Weights on disk come from the host slots of a DiskStream.
#pragma once

#include <span>
#include <vector>

#include "exec/disk_stream.h"
#include "exec/fetch_queue.h"
#include "exec/pinned_weights.h"

namespace tandem {

// Bytes of a group in a slot: its weights one after the other, each padded to kSlotAlignment.
inline constexpr size_t kSlotAlignment = 256;
size_t stream_group_bytes(const Graph& graph, const StreamGroup& group, const DeviceModel& device);
// Returns the slots that a partition's groups need on a device; on the host, those that groups on disk are
// read into.
SlotNeeds slot_needs(const Graph& graph, const Partition& partition, const DeviceModel& device, DeviceId id);

// The weights of a program's group, and where they are fetched from.
struct GroupWeights {
  std::vector<const Weight*> weights;  // identify the contents of a slot
  std::vector<Weight> fetched;         // the same with the data to fetch: in the host slot if on disk
  DiskLayout layout;                   // of the host slot

  GroupWeights(const Graph& graph, const StreamGroup& group);
  void bind(const std::byte* disk_slot, WeightSlices& slices);  // null for a group not on disk
};

class WeightStream final : public GroupSlots {
 public:
  // `disk` outlives the stream.
  WeightStream(std::span<Device* const> devices, DiskStream& disk);
  ~WeightStream();
  WeightStream(const WeightStream&) = delete;
  WeightStream& operator=(const WeightStream&) = delete;

  // Returns whether reserve() would move the slots and so invalidate their addresses.
  bool must_grow(DeviceId device, const SlotNeeds& needs) const;
  // Throws Error(out_of_memory).
  void reserve(DeviceId device, const SlotNeeds& needs);
  DevicePtr slot(DeviceId device, size_t slot) const { return at(device).slots[slot].base; }
  size_t n_bytes(DeviceId device) const { return at(device).needs.n_bytes(); }

  // From now on weights in host memory are page-locked where that pays; outlives the stream.
  void pin(PinnedWeights& pinned) { pinned_ = &pinned; }

  // Sets the groups that the functions below refer to. Both spans must stay valid until the next use().
  void use(std::span<const StreamGroup> groups, std::span<const GroupWeights> weights);
  bool holds(size_t group) override;
  bool is_read(size_t group) override;
  void start_read(size_t group) override;
  void wait_read(size_t group) override;
  void clear(size_t group) override;
  void start_fetch(size_t group) override;
  // Makes the group's device wait until its slot is complete.
  void join(size_t group);
  // The next fetch into the group's slot starts once the device has done everything issued so far.
  void release(size_t group);
  // Forgets what the slots hold, which is unknown after a failure.
  void forget();

  // Total bytes so far, in the layout of the devices.
  uint64_t fetched_bytes() const { return fetched_bytes_; }

 private:
  struct Slot {
    DevicePtr base = nullptr;
    std::vector<const Weight*> holds;
    Event fetched = 0;
    Event released = 0;
  };
  struct Slots {
    SlotNeeds needs;
    std::vector<Slot> slots;
  };
  const Slots& at(DeviceId device) const { return slots_[device.index()]; }
  Device& device_of(size_t group) const { return *devices_[groups_[group].device.index()]; }
  Slot& slot_of(size_t group);
  void free_slots(size_t device);

  std::span<Device* const> devices_;
  DiskStream& disk_;
  std::span<const StreamGroup> groups_;
  std::span<const GroupWeights> weights_;
  std::vector<Slots> slots_;  // [device]
  PinnedWeights* pinned_ = nullptr;
  uint64_t fetched_bytes_ = 0;
};

}  // namespace tandem
