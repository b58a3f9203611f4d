#include "exec/kv_stream.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"

namespace tandem {
namespace {

constexpr size_t kSlots = 2;
constexpr size_t kAlignment = 256;

size_t k_block_bytes(const KvLayer& l) {
  return row_bytes(l.k_dtype, l.head_dim_k) * static_cast<size_t>(l.block_size * l.n_head_kv);
}
size_t v_block_bytes(const KvLayer& l) {
  return row_bytes(l.v_dtype, l.head_dim_v) * static_cast<size_t>(l.block_size * l.n_head_kv);
}
// Values come after the keys in a slot.
size_t v_offset(const KvLayer& l) {
  return align_up(k_block_bytes(l) * static_cast<size_t>(l.n_blocks), kAlignment);
}

// Bytes as a device's fetch() takes them: floats lie everywhere as they are.
Weight as_floats(const std::byte* data, size_t n_bytes) {
  TANDEM_CHECK(n_bytes % sizeof(float) == 0);
  Weight w;
  w.name = "KV cache";
  w.n_rows = 1;
  w.n_cols = static_cast<int64_t>(n_bytes / sizeof(float));
  w.data = data;
  return w;
}

bool is_brought_to(DeviceId device, const LayerPlacement& layer) {
  const auto* prefetched = std::get_if<PrefetchedKv>(&layer.kv);
  return prefetched && prefetched->to == device;
}

}  // namespace

size_t kv_block_bytes(const KvLayer& l) {
  return k_block_bytes(l) + v_block_bytes(l);
}
size_t kv_pool_bytes(const KvLayer& l) {
  return kv_block_bytes(l) * static_cast<size_t>(l.n_blocks);
}

KvSlotNeeds kv_slot_needs(const Placement& placement, std::span<const KvLayer> layers, DeviceId device) {
  KvSlotNeeds needs;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!is_brought_to(device, placement.layers[i])) continue;
    const size_t v_bytes = v_block_bytes(layers[i]) * static_cast<size_t>(layers[i].n_blocks);
    needs.n_slots = std::min(needs.n_slots + 1, kSlots);
    needs.slot_bytes = std::max(needs.slot_bytes, v_offset(layers[i]) + align_up(v_bytes, kAlignment));
  }
  return needs;
}

KvStream::KvStream(std::span<Device* const> devices, const Placement& placement,
                   std::span<const KvLayer> host)
    : devices_(devices), host_(host), layers_(host.size()), slots_(devices.size()), parts_(2 * host.size()) {
  try {
    for (size_t d = 1; d < devices.size(); ++d) {
      const DeviceId device = DeviceId::at(d);
      slots_[d].needs = kv_slot_needs(placement, host, device);
      while (slots_[d].base.size() < slots_[d].needs.n_slots) {
        slots_[d].base.push_back(devices[d]->alloc(slots_[d].needs.slot_bytes));
      }
      std::vector<int> mine;
      for (size_t i = 0; i < host.size(); ++i) {
        if (is_brought_to(device, placement.layers[i])) mine.push_back(static_cast<int>(i));
      }
      for (size_t i = 0; i < mine.size(); ++i) {
        Layer& layer = layers_[static_cast<size_t>(mine[i])];
        layer.to = device.gpu();
        layer.slot = i % slots_[d].needs.n_slots;
        if (i + kSlots < mine.size()) layer.next = mine[i + kSlots];
        if (i < kSlots) slots_[d].first.push_back(mine[i]);
      }
    }
  } catch (...) {
    free_all();
    throw;
  }
}

KvStream::~KvStream() {
  free_all();
}

void KvStream::free_all() {
  for (size_t d = 0; d < slots_.size(); ++d) {
    for (DevicePtr base : slots_[d].base) devices_[d]->free(base);
  }
}

KvLayer KvStream::view(int i) const {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  KvLayer view = host_[static_cast<size_t>(i)];
  view.k = slots_[layer.to->index()].base[layer.slot];
  view.v = view.k + v_offset(view);
  return view;
}

void KvStream::begin(std::span<const int32_t> block_table, std::span<const int32_t> slots) {
  n_blocks_ = block_table.empty() ? 0 : *std::max_element(block_table.begin(), block_table.end()) + 1;
  written_.clear();
  const auto block_size = static_cast<int32_t>(host_.empty() ? 1 : std::max<int64_t>(host_[0].block_size, 1));
  for (int32_t s : slots) {
    const int32_t block = s / block_size;
    if (std::find(written_.begin(), written_.end(), block) == written_.end()) written_.push_back(block);
  }
  for (size_t d = 1; d < slots_.size(); ++d) {
    if (slots_[d].first.empty()) continue;
    const Event now = devices_[d]->record();  // nothing of the step before is still read
    for (int layer : slots_[d].first) fetch(layer, now);
  }
}

void KvStream::fetch(int i, Event after) {
  Layer& layer = layers_[static_cast<size_t>(i)];
  Device& device = *devices_[layer.to->index()];
  const KvLayer& host = host_[static_cast<size_t>(i)];
  const KvLayer there = view(i);
  const auto n = static_cast<size_t>(n_blocks_);
  Weight* part = &parts_[2 * static_cast<size_t>(i)];
  part[0] = as_floats(host.k, k_block_bytes(host) * n);
  part[1] = as_floats(host.v, v_block_bytes(host) * n);
  device.fetch(there.k, part[0], after);
  layer.fetched = device.fetch(there.v, part[1], after);
}

void KvStream::join(int i) {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  devices_[layer.to->index()]->join(layer.fetched);
}

void KvStream::done(int i) {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  Device& device = *devices_[layer.to->index()];
  const KvLayer& host = host_[static_cast<size_t>(i)];
  const KvLayer there = view(i);
  for (int32_t block : written_) {
    const size_t k = k_block_bytes(host) * static_cast<size_t>(block);
    const size_t v = v_block_bytes(host) * static_cast<size_t>(block);
    device.copy_out(host.k + k, there.k + k, k_block_bytes(host));
    device.copy_out(host.v + v, there.v + v, v_block_bytes(host));
  }
  if (layer.next >= 0) fetch(layer.next, device.record());
}

void KvStream::end() {
  for (size_t d = 1; d < slots_.size(); ++d) {
    if (!slots_[d].first.empty()) devices_[d]->wait(devices_[d]->record());
  }
}

}  // namespace tandem
