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

SlotNeeds slot_needs(const Graph& graph, const Partition& partition, const Placement& placement,
                     const DeviceModel& device, DeviceId id) {
  if (id.is_host()) return disk_slot_needs(graph, partition, placement);
  SlotNeeds needs;
  for (const StreamGroup& group : partition.groups) {
    if (group.device != id) continue;
    needs.n_slots = std::min(needs.n_slots + 1, placement.n_stream_slots);
    needs.slot_bytes = std::max(needs.slot_bytes, stream_group_bytes(graph, group, device));
  }
  return needs;
}

namespace {

// The groups take the slots in turn.
void take_turns(const std::vector<size_t>& groups, size_t n_slots, std::vector<StreamSchedule::Turn>& turns,
                std::vector<size_t>& first) {
  for (size_t i = 0; i < groups.size(); ++i) {
    StreamSchedule::Turn& turn = turns[groups[i]];
    turn.slot = i % n_slots;
    turn.next = groups[i + n_slots < groups.size() ? i + n_slots : i % n_slots];
    if (i < n_slots) first.push_back(groups[i]);
  }
}

}  // namespace

StreamSchedule schedule_stream(const Partition& partition, std::span<const SlotNeeds> needs) {
  StreamSchedule schedule;
  schedule.turns.resize(partition.groups.size());
  schedule.disk_turns.resize(partition.groups.size());
  for (size_t d = 0; d < needs.size(); ++d) {
    std::vector<size_t> groups;
    for (size_t g = 0; g < partition.groups.size(); ++g) {
      const StreamGroup& group = partition.groups[g];
      if (d == 0 ? group.on_disk : group.device == DeviceId::at(d)) groups.push_back(g);
    }
    take_turns(groups, needs[d].n_slots, d == 0 ? schedule.disk_turns : schedule.turns,
               d == 0 ? schedule.first_read : schedule.first);
  }
  for (size_t i = 0; i < partition.stages.size(); ++i) {
    if (partition.stages[i].group < 0) continue;
    const auto g = static_cast<size_t>(partition.stages[i].group);
    schedule.turns[g].last_stage = schedule.disk_turns[g].last_stage = i;
  }
  return schedule;
}

std::vector<bool> read_every_step(const Partition& partition, const StreamSchedule& schedule) {
  const size_t n = partition.groups.size();
  std::vector<size_t> passing;  // those that do not stay on a device
  for (size_t g = 0; g < n; ++g) {
    const StreamGroup& group = partition.groups[g];
    if (group.on_disk && (group.device.is_host() || schedule.turns[g].next != g)) passing.push_back(g);
  }
  std::vector<bool> read(n, false);
  for (size_t g : passing) {
    for (size_t other : passing) {
      if (other != g && schedule.disk_turns[other].slot == schedule.disk_turns[g].slot) read[g] = true;
    }
  }
  return read;
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

// What waited in the step before has other sources in this one.
void WeightStream::begin() {
  for (Slots& slots : slots_) slots.waiting.clear();
}

bool WeightStream::holds(const StreamGroup& group, const Graph& graph, size_t slot) const {
  const std::vector<const Weight*>& held = at(group.device).slots[slot].holds;
  return std::equal(group.weights.begin(), group.weights.end(), held.begin(), held.end(),
                    [&](TensorId id, const Weight* weight) { return graph.tensor(id).weight == weight; });
}

void WeightStream::fetch(const Source& source, size_t index) {
  const size_t d = source.group->device.index();
  Slot& slot = slots_[d].slots[index];
  if (holds(*source.group, *source.graph, index)) return;
  slot.holds.clear();
  if (source.group->on_disk || !slots_[d].waiting.empty()) {
    slots_[d].waiting.push_back({index, source});
  } else {
    start(d, slot, source);
  }
}

void WeightStream::start(size_t d, Slot& slot, const Source& source) {
  size_t offset = 0;
  for (TensorId id : source.group->weights) {
    const Weight& weight = *source.graph->tensor(id).weight;
    part_ = weight;
    if (source.group->on_disk && weight.in_file) {
      part_.data = disk_.slot(source.disk_slot) + source.layout->offset_of(weight);
    }
    const size_t n_bytes = devices_[d]->weight_bytes(weight);
    slot.fetched = devices_[d]->fetch(slot.base + offset, part_, slot.released);
    if (source.group->on_disk) disk_.lend(source.disk_slot, source.group->device, slot.fetched);
    offset += align_up(n_bytes, kSlotAlignment);
    fetched_bytes_ += n_bytes;
  }
  for (TensorId id : source.group->weights) slot.holds.push_back(source.graph->tensor(id).weight);
}

void WeightStream::start_first(size_t d) {
  const Waiting first = slots_[d].waiting.front();
  slots_[d].waiting.erase(slots_[d].waiting.begin());
  if (first.source.group->on_disk) {
    disk_.fetch(*first.source.layout, first.source.disk_slot);
    disk_.wait(first.source.disk_slot);
  }
  start(d, slots_[d].slots[first.slot], first.source);
}

void WeightStream::start_ready() {
  for (size_t d = 1; d < slots_.size(); ++d) {
    const auto is_ready = [&](const Source& source) {
      return !source.group->on_disk || disk_.is_ready(*source.layout, source.disk_slot);
    };
    while (!slots_[d].waiting.empty() && is_ready(slots_[d].waiting.front().source)) start_first(d);
  }
}

void WeightStream::join(DeviceId device, size_t index) {
  const size_t d = device.index();
  const Slot& slot = slots_[d].slots[index];
  while (slot.holds.empty() && !slots_[d].waiting.empty()) start_first(d);
  devices_[d]->join(slot.fetched);
}

void WeightStream::release(DeviceId device, size_t slot) {
  const size_t d = device.index();
  slots_[d].slots[slot].released = devices_[d]->record();
}

void WeightStream::forget() {
  for (Slots& slots : slots_) {
    slots.waiting.clear();
    for (Slot& slot : slots.slots) slot.holds.clear();
  }
}

}  // namespace tandem
