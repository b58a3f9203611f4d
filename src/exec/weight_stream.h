// WeightStream: the slots that streamed layers pass through. A device has a few, all of one size; the layers
// that a program streams to it take them in turn, and a layer is on its way into a slot as soon as the one
// that had it has been computed. Owns the slots.
//
// Which layer a slot holds is remembered from step to step, also between programs, so nothing is brought in
// twice while it is still there.
#pragma once

#include <span>
#include <vector>

#include "exec/partition.h"

namespace tandem {

// Bytes of a group in a slot: its weights one after the other, each padded to kSlotAlignment.
inline constexpr size_t kSlotAlignment = 256;
size_t stream_group_bytes(const Graph& graph, const StreamGroup& group, const Device& device);
// Slots that a partition's groups need on a device, and how large each must be.
struct SlotNeeds {
  size_t n_slots = 0;
  size_t slot_bytes = 0;

  size_t n_bytes() const { return n_slots * slot_bytes; }
  SlotNeeds united(const SlotNeeds& other) const;
};
SlotNeeds slot_needs(const Graph& graph, const Partition& partition, const Placement& placement,
                     const Device& device, int number);

// Which slot each group of a partition has, and whom it goes to afterwards: the groups of a device take its
// slots in turn, and after the last one the first ones, for the next step.
struct StreamSchedule {
  struct Turn {
    size_t slot = 0;
    size_t next = 0;        // the group that has the slot afterwards; itself when it is the only one
    size_t last_stage = 0;  // the stage after which the slot is free
  };
  std::vector<Turn> turns;    // [group]
  std::vector<size_t> first;  // the groups that a step begins with
};
StreamSchedule schedule_stream(const Partition& partition, std::span<const SlotNeeds> needs);

class WeightStream {
 public:
  explicit WeightStream(std::span<Device* const> devices);
  ~WeightStream();
  WeightStream(const WeightStream&) = delete;
  WeightStream& operator=(const WeightStream&) = delete;

  // Whether reserve() would move the slots, so that addresses given out before are no longer good.
  bool must_grow(int device, const SlotNeeds& needs) const;
  // Throws Error(out_of_memory).
  void reserve(int device, const SlotNeeds& needs);
  DevicePtr slot(int device, size_t slot) const { return at(device).slots[slot].base; }
  size_t n_bytes(int device) const { return at(device).needs.n_bytes(); }

  // Starts bringing the group into the slot, unless it is there.
  void fetch(const Graph& graph, const StreamGroup& group, size_t slot);
  // What is issued to the device from now on finds the slot's group complete.
  void join(int device, size_t slot);
  // All that reads the slot has been issued: the next fetch begins after it.
  void release(int device, size_t slot);
  // After a failure nobody knows what the slots hold.
  void forget();

  uint64_t fetched_bytes() const {
    return fetched_bytes_;
  }  // since the beginning, as they lie on the devices

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
  const Slots& at(int device) const { return slots_[static_cast<size_t>(device)]; }
  void free_slots(size_t device);

  std::span<Device* const> devices_;
  std::vector<Slots> slots_;  // [device]
  uint64_t fetched_bytes_ = 0;
};

}  // namespace tandem
