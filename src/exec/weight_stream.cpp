#include "exec/weight_stream.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"

namespace tandem {

size_t stream_group_bytes(const Graph& graph, const StreamGroup& group, const DeviceModel& device) {
  size_t n_bytes = 0;
  for (TensorId id : group.weights) {
    n_bytes += align_up(device.weight_bytes(*graph.tensor(id).weight), kSlotAlignment);
  }
  return n_bytes;
}

SlotNeeds slot_needs(const Graph& graph, const Partition& partition, const DeviceModel& device, DeviceId id) {
  if (id.is_host()) return disk_slot_needs(graph, partition);
  SlotNeeds needs;
  for (const StreamGroup& group : partition.groups) {
    if (group.device != id) continue;
    needs = needs.united({group.turn.slot + 1, stream_group_bytes(graph, group, device)});
  }
  return needs;
}

GroupWeights::GroupWeights(const Graph& graph, const StreamGroup& group) : layout(disk_layout(graph, group)) {
  for (TensorId id : group.weights) weights.push_back(graph.tensor(id).weight);
}

void GroupWeights::bind(const std::byte* disk_slot, WeightSlices& slices) {
  fetched.clear();
  for (const Weight* weight : weights) {
    fetched.push_back(*weight);
    fetched.back().data = slices.kept(*weight);
    if (disk_slot && weight->in_file) fetched.back().data = disk_slot + layout.offset_of(*weight);
  }
}

WeightStream::WeightStream(std::span<Device* const> devices, DiskStream& disk)
    : devices_(devices), disk_(disk), slots_(devices.size()) {}

WeightStream::~WeightStream() {
  for (size_t d = 0; d < slots_.size(); ++d) free_slots(d);
}

void WeightStream::free_slots(size_t d) {
  for (const Slot& slot : slots_[d].slots) devices_[d]->free(slot.base);
  slots_[d] = Slots{};
}

bool WeightStream::must_grow(DeviceId device, const SlotNeeds& needs) const {
  const SlotNeeds& has = at(device).needs;
  return needs.n_slots > has.n_slots || needs.slot_bytes > has.slot_bytes;
}

void WeightStream::reserve(DeviceId device, const SlotNeeds& needs) {
  if (!must_grow(device, needs)) return;
  const size_t d = device.index();
  const SlotNeeds united = at(device).needs.united(needs);
  free_slots(d);
  while (slots_[d].slots.size() < united.n_slots) {
    slots_[d].slots.push_back(Slot{devices_[d]->alloc(united.slot_bytes), {}});
  }
  slots_[d].needs = united;
}

void WeightStream::use(std::span<const StreamGroup> groups, std::span<const GroupWeights> weights) {
  groups_ = groups;
  weights_ = weights;
}

WeightStream::Slot& WeightStream::slot_of(size_t g) {
  return slots_[groups_[g].device.index()].slots[groups_[g].turn.slot];
}

bool WeightStream::holds(size_t g) {
  return slot_of(g).holds == weights_[g].weights;
}

bool WeightStream::is_read(size_t g) {
  return disk_.is_ready(weights_[g].layout, groups_[g].disk_turn.slot);
}

void WeightStream::start_read(size_t g) {
  disk_.fetch(weights_[g].layout, groups_[g].disk_turn.slot);
}

void WeightStream::wait_read(size_t g) {
  disk_.wait(groups_[g].disk_turn.slot);
}

void WeightStream::clear(size_t g) {
  slot_of(g).holds.clear();
}

void WeightStream::start_fetch(size_t g) {
  Slot& slot = slot_of(g);
  Device& device = device_of(g);
  DevicePtr to = slot.base;
  for (const Weight& weight : weights_[g].fetched) {
    const size_t n_bytes = device.weight_bytes(weight);
    if (pinned_ && !groups_[g].on_disk) pinned_->fetching(device, weight);
    slot.fetched = device.fetch(to, weight, slot.released);
    if (groups_[g].on_disk) disk_.lend(groups_[g].disk_turn.slot, groups_[g].device, slot.fetched);
    to += align_up(n_bytes, kSlotAlignment);
    fetched_bytes_ += n_bytes;
  }
  slot.holds = weights_[g].weights;
}

void WeightStream::join(size_t g) {
  const Event fetched = slot_of(g).fetched;
  device_of(g).join(fetched);
  if (groups_[g].on_disk) disk_.joined(groups_[g].disk_turn.slot, groups_[g].device, fetched);
}

void WeightStream::release(size_t g) {
  slot_of(g).released = device_of(g).record();
}

void WeightStream::forget() {
  for (Slots& slots : slots_) {
    for (Slot& slot : slots.slots) slot.holds.clear();
  }
}

}  // namespace tandem
