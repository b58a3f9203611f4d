#include "exec/disk_stream.h"

#include <algorithm>

#include "base/error.h"

namespace tandem {
namespace {

// A gap between two tensors up to this size is read too: that costs less than a separate read.
constexpr size_t kSmallGap = size_t{64} << 10;

const std::byte* page_of(const std::byte* address) {
  return address - reinterpret_cast<uintptr_t>(address) % kDiskAlignment;
}

}  // namespace

size_t DiskLayout::offset_of(const Weight& weight) const {
  for (const Extent& extent : extents) {
    if (weight.data >= extent.from && weight.data < extent.from + extent.n_bytes) {
      return extent.at + static_cast<size_t>(weight.data - extent.from);
    }
  }
  TANDEM_CHECK(!"the weight is not in this layout");
  return 0;
}

DiskLayout disk_layout(const Graph& graph, const StreamGroup& group) {
  DiskLayout layout;
  if (!group.on_disk) return layout;
  std::vector<const Weight*> weights;
  for (TensorId id : group.weights) {
    if (graph.tensor(id).weight->in_file) weights.push_back(graph.tensor(id).weight);
  }
  std::sort(weights.begin(), weights.end(),
            [](const Weight* a, const Weight* b) { return a->data < b->data; });
  for (const Weight* weight : weights) {
    const std::byte* begin = page_of(weight->data);
    const std::byte* end = page_of(weight->data + weight->n_bytes() + kDiskAlignment - 1);
    if (!layout.extents.empty()) {
      DiskLayout::Extent& last = layout.extents.back();
      const std::byte* reached = last.from + last.n_bytes;
      if (begin <= reached + kSmallGap) {
        last.n_bytes = static_cast<size_t>(std::max(end, reached) - last.from);
        continue;
      }
      layout.n_bytes += last.n_bytes;
    }
    layout.extents.push_back({begin, static_cast<size_t>(end - begin), layout.n_bytes});
  }
  if (!layout.extents.empty()) layout.n_bytes += layout.extents.back().n_bytes;
  return layout;
}

SlotNeeds disk_slot_needs(const Graph& graph, const Partition& partition) {
  SlotNeeds needs;
  for (const StreamGroup& group : partition.groups) {
    if (!group.on_disk) continue;
    needs = needs.united({group.disk_turn.slot + 1, disk_layout(graph, group).n_bytes});
  }
  return needs;
}

DiskStream::DiskStream(std::span<Device* const> devices, DiskReader* reader)
    : devices_(devices), reader_(reader) {}

DiskStream::~DiskStream() {
  free_slots();
}

void DiskStream::free_slots() {
  forget();
  for (const Slot& slot : slots_) devices_[0]->free(slot.base);
  slots_.clear();
  needs_ = {};
}

bool DiskStream::must_grow(const SlotNeeds& needs) const {
  return needs.n_slots > needs_.n_slots || needs.slot_bytes > needs_.slot_bytes;
}

void DiskStream::reserve(const SlotNeeds& needs) {
  if (!must_grow(needs)) return;
  TANDEM_CHECK(reader_ != nullptr);
  const SlotNeeds united = needs_.united(needs);
  free_slots();
  while (slots_.size() < united.n_slots) {
    slots_.push_back(Slot{devices_[0]->alloc(united.slot_bytes)});
    TANDEM_CHECK(page_of(slots_.back().base) == slots_.back().base);  // the host gives whole pages
  }
  needs_ = united;
}

void DiskStream::fetch(const DiskLayout& layout, size_t index) {
  Slot& slot = slots_[index];
  if (slot.holds == layout.extents) return;
  end_loan(slot);
  if (slot.under_way) wait(index);
  slot.holds.clear();
  reads_.clear();
  for (const DiskLayout::Extent& e : layout.extents) reads_.push_back({e.from, e.n_bytes, slot.base + e.at});
  slot.under_way = reader_->start(reads_);
  slot.holds = layout.extents;
  read_bytes_ += layout.n_bytes;
}

bool DiskStream::is_ready(const DiskLayout& layout, size_t index) {
  const Slot& slot = slots_[index];
  return slot.holds == layout.extents && (!slot.under_way || reader_->is_done(*slot.under_way));
}

void DiskStream::wait(size_t index) {
  Slot& slot = slots_[index];
  if (!slot.under_way) return;
  const DiskReader::Ticket ticket = *slot.under_way;
  slot.under_way.reset();
  try {
    reader_->wait(ticket);
  } catch (...) {
    slot.holds.clear();
    throw;
  }
}

void DiskStream::lend(size_t index, DeviceId device, Event fetched) {
  slots_[index].loan = Loan{device, fetched, std::nullopt};
}

void DiskStream::joined(size_t index, DeviceId device, Event fetched) {
  std::optional<Loan>& loan = slots_[index].loan;
  if (!loan || loan->device != device || loan->fetched != fetched) return;  // the loan is for another fetch
  if (!loan->over) loan->over = devices_[device.index()]->record();
}

void DiskStream::end_loan(Slot& slot) {
  if (!slot.loan) return;
  Device& device = *devices_[slot.loan->device.index()];
  if (!slot.loan->over) {
    device.join(slot.loan->fetched);
    slot.loan->over = device.record();
  }
  const Event over = *slot.loan->over;
  slot.loan.reset();
  device.wait(over);
}

// Ignores errors: they have been reported already.
void DiskStream::forget() {
  for (size_t i = 0; i < slots_.size(); ++i) {
    try {
      end_loan(slots_[i]);
    } catch (const Error&) {}
    try {
      wait(i);
    } catch (const Error&) {}
    slots_[i].holds.clear();
  }
}

}  // namespace tandem
