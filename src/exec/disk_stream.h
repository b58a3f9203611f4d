// DiskStream: host slots for layers on disk, which are read into them ahead of use. The CPU computes
// directly from a slot. Weights for a GPU are copied from the slot to the GPU (see WeightStream), and the
// slot is on loan until that copy is complete. Owns the slots and fills them on request; the schedule
// decides the order.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/disk_reader.h"
#include "device/device.h"
#include "exec/partition.h"
#include "exec/slots.h"

namespace tandem {

// The layout of a group's weights on disk in a host slot: as in the file, in whole pages, so that direct
// reads can fill it. Neighbouring tensors of the file are read in one piece.
struct DiskLayout {
  struct Extent {
    const std::byte* from = nullptr;  // address in the mapped file
    size_t n_bytes = 0;
    size_t at = 0;  // offset in the slot

    bool operator==(const Extent&) const = default;
  };
  std::vector<Extent> extents;  // in the order of the file
  size_t n_bytes = 0;           // size in the slot, all of it read from disk

  size_t offset_of(const Weight& weight) const;
};
DiskLayout disk_layout(const Graph& graph, const StreamGroup& group);  // empty for a group not on disk
SlotNeeds disk_slot_needs(const Graph& graph, const Partition& partition);

class DiskStream {
 public:
  // devices[0] is the host and holds the slots. `reader` may be null if no group is on disk; it outlives the stream.
  DiskStream(std::span<Device* const> devices, DiskReader* reader);
  ~DiskStream();
  DiskStream(const DiskStream&) = delete;
  DiskStream& operator=(const DiskStream&) = delete;

  // Returns whether reserve() would move the slots and so invalidate their addresses.
  bool must_grow(const SlotNeeds& needs) const;
  void reserve(const SlotNeeds& needs);  // throws Error(out_of_memory)
  std::byte* slot(size_t slot) const { return slots_[slot].base; }
  size_t n_bytes() const { return needs_.n_bytes(); }

  // Starts reading into the slot, unless it already holds this layout or is reading it. Waits until the
  // slot is not on loan.
  void fetch(const DiskLayout& layout, size_t slot);
  bool is_ready(const DiskLayout& layout, size_t slot);  // whether the read is complete
  void wait(size_t slot);                                // until the read is complete; throws Error(io)

  // lend(): the device copies the slot's contents with a Device::fetch that returned `fetched`. joined():
  // the device has joined that fetch.
  void lend(size_t slot, DeviceId device, Event fetched);
  void joined(size_t slot, DeviceId device, Event fetched);

  // After a failure: waits for all reads and loans to end. The slots hold nothing afterwards.
  void forget();

  uint64_t read_bytes() const { return read_bytes_; }  // total so far

 private:
  struct Loan {
    DeviceId device;
    Event fetched;
    std::optional<Event> over;  // once the fetch has been joined
  };
  struct Slot {
    std::byte* base = nullptr;
    std::vector<DiskLayout::Extent> holds;
    std::optional<DiskReader::Ticket> under_way;
    std::optional<Loan> loan;
  };
  void end_loan(Slot& slot);
  void free_slots();

  std::span<Device* const> devices_;
  DiskReader* reader_;
  SlotNeeds needs_;
  std::vector<Slot> slots_;
  std::vector<DiskRead> reads_;  // of one fetch
  uint64_t read_bytes_ = 0;
};

}  // namespace tandem
