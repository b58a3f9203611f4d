#include "exec/weight_stream.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"

namespace tandem {

size_t stream_group_bytes(const Graph& graph, const StreamGroup& group, const Device& device) {
  size_t n_bytes = 0;
  for (TensorId id : group.weights) {
    n_bytes += align_up(device.weight_bytes(*graph.tensor(id).weight), kSlotAlignment);
  }
  return n_bytes;
}

SlotNeeds SlotNeeds::united(const SlotNeeds& other) const {
  return {std::max(n_slots, other.n_slots), std::max(slot_bytes, other.slot_bytes)};
}

SlotNeeds slot_needs(const Graph& graph, const Partition& partition, const Placement& placement,
                     const Device& device, int number) {
  SlotNeeds needs;
  for (const StreamGroup& group : partition.groups) {
    if (group.device != number) continue;
    needs.n_slots = std::min(needs.n_slots + 1, static_cast<size_t>(placement.n_stream_slots));
    needs.slot_bytes = std::max(needs.slot_bytes, stream_group_bytes(graph, group, device));
  }
  return needs;
}

StreamSchedule schedule_stream(const Partition& partition, std::span<const SlotNeeds> needs) {
  StreamSchedule schedule;
  schedule.turns.resize(partition.groups.size());
  for (size_t d = 0; d < needs.size(); ++d) {
    std::vector<size_t> groups;
    for (size_t g = 0; g < partition.groups.size(); ++g) {
      if (partition.groups[g].device == static_cast<int>(d)) groups.push_back(g);
    }
    const size_t n_slots = needs[d].n_slots;
    for (size_t i = 0; i < groups.size(); ++i) {
      StreamSchedule::Turn& turn = schedule.turns[groups[i]];
      turn.slot = i % n_slots;
      turn.next = groups[i + n_slots < groups.size() ? i + n_slots : i % n_slots];
      if (i < n_slots) schedule.first.push_back(groups[i]);
    }
  }
  for (size_t i = 0; i < partition.stages.size(); ++i) {
    if (partition.stages[i].group >= 0)
      schedule.turns[static_cast<size_t>(partition.stages[i].group)].last_stage = i;
  }
  return schedule;
}

WeightStream::WeightStream(std::span<Device* const> devices) : devices_(devices), slots_(devices.size()) {}

WeightStream::~WeightStream() {
  for (size_t d = 0; d < slots_.size(); ++d) free_slots(d);
}

void WeightStream::free_slots(size_t d) {
  for (const Slot& slot : slots_[d].slots) devices_[d]->free(slot.base);
  slots_[d] = Slots{};
}

bool WeightStream::must_grow(int device, const SlotNeeds& needs) const {
  const SlotNeeds& has = at(device).needs;
  return needs.n_slots > has.n_slots || needs.slot_bytes > has.slot_bytes;
}

void WeightStream::reserve(int device, const SlotNeeds& needs) {
  if (!must_grow(device, needs)) return;
  const auto d = static_cast<size_t>(device);
  const SlotNeeds united = at(device).needs.united(needs);
  free_slots(d);
  while (slots_[d].slots.size() < united.n_slots) {
    slots_[d].slots.push_back(Slot{devices_[d]->alloc(united.slot_bytes), {}});
  }
  slots_[d].needs = united;
}

void WeightStream::fetch(const Graph& graph, const StreamGroup& group, size_t index) {
  const auto d = static_cast<size_t>(group.device);
  Slot& slot = slots_[d].slots[index];
  if (std::equal(group.weights.begin(), group.weights.end(), slot.holds.begin(), slot.holds.end(),
                 [&](TensorId id, const Weight* weight) { return graph.tensor(id).weight == weight; })) {
    return;
  }
  slot.holds.clear();
  size_t offset = 0;
  for (TensorId id : group.weights) {
    const Weight& weight = *graph.tensor(id).weight;
    const size_t n_bytes = devices_[d]->weight_bytes(weight);
    slot.fetched = devices_[d]->fetch(slot.base + offset, weight, slot.released);
    offset += align_up(n_bytes, kSlotAlignment);
    fetched_bytes_ += n_bytes;
  }
  for (TensorId id : group.weights) slot.holds.push_back(graph.tensor(id).weight);
}

void WeightStream::join(int device, size_t slot) {
  devices_[static_cast<size_t>(device)]->join(at(device).slots[slot].fetched);
}

void WeightStream::release(int device, size_t slot) {
  const auto d = static_cast<size_t>(device);
  slots_[d].slots[slot].released = devices_[d]->record();
}

void WeightStream::forget() {
  for (Slots& slots : slots_) {
    for (Slot& slot : slots.slots) slot.holds.clear();
  }
}

}  // namespace tandem
