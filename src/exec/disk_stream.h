// DiskStream: the slots in host memory that layers on disk are read into, ahead of use. The CPU computes with
// what a slot holds; a GPU's weights go on from there (see WeightStream), and until they have, the slot is
// lent. Owns the slots and fills them on request; the schedule has the order.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/disk_reader.h"
#include "device/device.h"
#include "exec/partition.h"
#include "exec/slots.h"

namespace tandem {

// Where the weights of a group that are on disk lie in a slot: as in the file, page by page, so that direct
// reads can bring them there. Tensors that are neighbours in the file are read in one piece.
struct DiskLayout {
  struct Extent {
    const std::byte* from = nullptr;  // in the file's mapping
    size_t n_bytes = 0;
    size_t at = 0;  // in the slot

    bool operator==(const Extent&) const = default;
  };
  std::vector<Extent> extents;  // in the order of the file
  size_t n_bytes = 0;           // of a slot; this much is read

  size_t offset_of(const Weight& weight) const;
};
DiskLayout disk_layout(const Graph& graph, const StreamGroup& group);  // empty for a group not on disk
SlotNeeds disk_slot_needs(const Graph& graph, const Partition& partition);

class DiskStream {
 public:
  // devices[0] holds the slots. No reader: no group is on disk.
  DiskStream(std::span<Device* const> devices, std::unique_ptr<DiskReader> reader);
  ~DiskStream();
  DiskStream(const DiskStream&) = delete;
  DiskStream& operator=(const DiskStream&) = delete;

  // Whether reserve() would move the slots, so that addresses given out before are no longer good.
  bool must_grow(const SlotNeeds& needs) const;
  void reserve(const SlotNeeds& needs);  // throws Error(out_of_memory)
  std::byte* slot(size_t slot) const { return slots_[slot].base; }
  size_t n_bytes() const { return needs_.n_bytes(); }

  // Starts reading into the slot, unless that is there or on its way. Waits until the slot is not lent.
  void fetch(const DiskLayout& layout, size_t slot);
  bool is_ready(const DiskLayout& layout, size_t slot);  // fetched and complete
  void wait(size_t slot);                                // until it is complete; throws Error(io)

  // The device brings to itself what the slot holds, with a Device::fetch that gave this event; and joined
  // it.
  void lend(size_t slot, DeviceId device, Event fetched);
  void joined(size_t slot, DeviceId device, Event fetched);

  // After a failure: nothing is under way any more, and the slots hold nothing.
  void forget();

  uint64_t read_bytes() const { return read_bytes_; }  // since the beginning

 private:
  struct Loan {
    DeviceId device;
    Event fetched;
    std::optional<Event> over;  // once it has been joined
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
  std::unique_ptr<DiskReader> reader_;
  SlotNeeds needs_;
  std::vector<Slot> slots_;
  std::vector<DiskRead> reads_;  // of one fetch
  uint64_t read_bytes_ = 0;
};

}  // namespace tandem
