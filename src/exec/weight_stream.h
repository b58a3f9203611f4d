// WeightStream: the slots that streamed layers pass through. A device has a few, all of one size; the layers
// that a program streams to it take them in turn, and a layer is on its way into a slot as soon as the one
// that had it has been computed. Owns the slots.
// What is on disk comes by way of a DiskStream: such a layer is on its way into the slot as soon as it has
// also been read.
//
// Which layer a slot holds is remembered from step to step, also between programs, so nothing is brought in
// twice while it is still there.
#pragma once

#include <span>
#include <vector>

#include "exec/disk_stream.h"

namespace tandem {

// Bytes of a group in a slot: its weights one after the other, each padded to kSlotAlignment.
inline constexpr size_t kSlotAlignment = 256;
size_t stream_group_bytes(const Graph& graph, const StreamGroup& group, const DeviceModel& device);
// Slots that a partition's groups need on a device; on the host, those that groups on disk are read into.
SlotNeeds slot_needs(const Graph& graph, const Partition& partition, const Placement& placement,
                     const DeviceModel& device, DeviceId id);

// Which slot each group of a partition has, and whom it goes to afterwards: the groups of a device take its
// slots in turn, and after the last one the first ones, for the next step.
struct StreamSchedule {
  struct Turn {
    size_t slot = 0;
    size_t next = 0;        // the group that has the slot afterwards; itself when it is the only one
    size_t last_stage = 0;  // the stage after which the slot is free
  };
  std::vector<Turn> turns;         // [group], but for those of the host
  std::vector<Turn> disk_turns;    // [group], of those on disk: in the slots of the host
  std::vector<size_t> first;       // the groups that a step begins with
  std::vector<size_t> first_read;  // of those on disk
};
StreamSchedule schedule_stream(const Partition& partition, std::span<const SlotNeeds> needs);
// [group] Whether it is read from disk in every step: not when it has a slot to itself, there or on its
// device.
std::vector<bool> read_every_step(const Partition& partition, const StreamSchedule& schedule);

class WeightStream {
 public:
  // `disk` outlives the stream.
  WeightStream(std::span<Device* const> devices, DiskStream& disk);
  ~WeightStream();
  WeightStream(const WeightStream&) = delete;
  WeightStream& operator=(const WeightStream&) = delete;

  // Whether reserve() would move the slots, so that addresses given out before are no longer good.
  bool must_grow(DeviceId device, const SlotNeeds& needs) const;
  // Throws Error(out_of_memory).
  void reserve(DeviceId device, const SlotNeeds& needs);
  DevicePtr slot(DeviceId device, size_t slot) const { return at(device).slots[slot].base; }
  size_t n_bytes(DeviceId device) const { return at(device).needs.n_bytes(); }

  // A group of a graph, and where it comes from when it is on disk: a slot of the DiskStream.
  struct Source {
    const Graph* graph = nullptr;
    const StreamGroup* group = nullptr;
    const DiskLayout* layout = nullptr;
    size_t disk_slot = 0;
  };
  void begin();  // a step
  // Starts bringing the group into the slot, unless it is there. What is on disk begins when start_ready()
  // finds it read, or at join(), and what comes after it on the same device does not overtake it; until then
  // `source` must be good.
  void fetch(const Source& source, size_t slot);
  void start_ready();
  bool holds(const StreamGroup& group, const Graph& graph, size_t slot) const;
  // What is issued to the device from now on finds the slot's group complete.
  void join(DeviceId device, size_t slot);
  // All that reads the slot has been issued: the next fetch begins after it.
  void release(DeviceId device, size_t slot);
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
  struct Waiting {
    size_t slot = 0;
    Source source;
  };
  struct Slots {
    SlotNeeds needs;
    std::vector<Slot> slots;
    std::vector<Waiting> waiting;  // for the disk, or behind what does
  };
  const Slots& at(DeviceId device) const { return slots_[device.index()]; }
  void free_slots(size_t device);
  void start(size_t device, Slot& slot, const Source& source);
  void start_first(size_t device);

  std::span<Device* const> devices_;
  DiskStream& disk_;
  Weight part_;               // what is being fetched, where the disk's slot has it
  std::vector<Slots> slots_;  // [device]
  uint64_t fetched_bytes_ = 0;
};

}  // namespace tandem
