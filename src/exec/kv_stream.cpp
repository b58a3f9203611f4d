#include "exec/kv_stream.h"

#include <algorithm>
#include <array>

#include "base/checked.h"
#include "base/error.h"
#include "gguf/kivi.h"

namespace tandem {
namespace {

constexpr size_t kAlignment = 256;

size_t k_block_bytes(const KvLayer& l) {
  return row_bytes(l.k_dtype, l.head_dim_k) * static_cast<size_t>(l.block_size * l.n_head_k());
}
size_t v_block_bytes(const KvLayer& l) {
  return row_bytes(l.v_dtype, l.head_dim_v) * static_cast<size_t>(l.block_size * l.n_head_kv);
}
size_t open_block_bytes(const KvLayer& l, DType dtype, int64_t n_head, int64_t head_dim) {
  return is_kivi(dtype) ? row_bytes(DType::F16, head_dim) * static_cast<size_t>(l.block_size * n_head) : 0;
}

// What a slot holds, one after the other; of layers without a grouped dtype only the first two.
enum Part : size_t { kKeys, kValues, kOpenKeys, kOpenValues, kOpenTable, kParts };

// A cache's part: so many equal pieces, a block of the pool, an open block or an entry of the table.
struct Pieces {
  size_t n_bytes;  // of one
  int64_t n;
};
Pieces pieces_of(const KvLayer& l, size_t part) {
  switch (part) {
    case kKeys: return {k_block_bytes(l), l.n_blocks};
    case kValues: return {v_block_bytes(l), l.n_blocks};
    case kOpenKeys: return {open_block_bytes(l, l.k_dtype, l.n_head_k(), l.head_dim_k), l.n_open};
    case kOpenValues: return {open_block_bytes(l, l.v_dtype, l.n_head_kv, l.head_dim_v), l.n_open};
    default: return {sizeof(int32_t), l.n_open > 0 ? l.n_blocks : 0};
  }
}
// Of a part in its slot; of kParts, the bytes of a slot.
size_t offset_of(const KvLayer& l, size_t part) {
  size_t offset = 0;
  for (size_t i = 0; i < part; ++i) {
    const Pieces pieces = pieces_of(l, i);
    offset += align_up(pieces.n_bytes * static_cast<size_t>(pieces.n), kAlignment);
  }
  return offset;
}
std::array<DevicePtr, kParts> addresses_of(const KvLayer& l) {
  return {l.k, l.v, l.k_open, l.v_open, l.open_table};
}

// Whole pages, of the keys and then of the values, as in the file.
size_t spilled_v_offset(const KvLayer& l) {
  return align_up(k_block_bytes(l) * static_cast<size_t>(l.n_spilled), kDiskAlignment);
}

// Wraps bytes as an F32 weight for Device::fetch: every device stores floats unchanged.
Weight as_floats(const std::byte* data, size_t n_bytes) {
  TANDEM_CHECK(n_bytes % sizeof(float) == 0);
  Weight w;
  w.name = "KV cache";
  w.n_rows = 1;
  w.n_cols = static_cast<int64_t>(n_bytes / sizeof(float));
  w.data = data;
  return w;
}

}  // namespace

size_t kv_block_bytes(const KvLayer& l) {
  return k_block_bytes(l) + v_block_bytes(l);
}
size_t kv_written_bytes(const KvLayer& l) {
  const size_t k_open = open_block_bytes(l, l.k_dtype, l.n_head_k(), l.head_dim_k),
               v_open = open_block_bytes(l, l.v_dtype, l.n_head_kv, l.head_dim_v);
  return (k_open > 0 ? k_open : k_block_bytes(l)) + (v_open > 0 ? v_open : v_block_bytes(l));
}

size_t kv_spill_slot_bytes(const KvLayer& l) {
  return spilled_v_offset(l) + align_up(v_block_bytes(l) * static_cast<size_t>(l.n_spilled), kDiskAlignment);
}

SlotNeeds kv_slot_needs(std::span<const PrefetchedLayer> caches, std::span<const KvLayer> layers,
                        DeviceId device) {
  SlotNeeds needs;
  for (const PrefetchedLayer& cache : caches) {
    if (cache.device != device) continue;
    if (device.is_host()) {
      needs = needs.united({cache.turn.slot + 1, kv_spill_slot_bytes(layers[cache.layer])});
      continue;
    }
    needs = needs.united({cache.turn.slot + 1, offset_of(layers[cache.layer], kParts)});
  }
  return needs;
}

KvStream::KvStream(std::span<Device* const> devices, std::vector<PrefetchedLayer> caches,
                   std::span<const KvLayer> host, DiskReader* spill)
    : devices_(devices),
      caches_(std::move(caches)),
      host_(host.begin(), host.end()),
      spilled_(devices, spill),
      slots_(devices.size()),
      parts_(kParts * caches_.size()) {
  spilled_.reserve(kv_slot_needs(caches_, host, DeviceId::host()));
  try {
    for (size_t d = 1; d < devices.size(); ++d) {
      slots_[d].needs = kv_slot_needs(caches_, host, DeviceId::at(d));
      while (slots_[d].slots.size() < slots_[d].needs.n_slots) {
        slots_[d].slots.push_back({devices[d]->alloc(slots_[d].needs.slot_bytes)});
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
    for (const Slot& slot : slots_[d].slots) devices_[d]->free(slot.base);
  }
}

KvStream::Slot& KvStream::slot_of(size_t c) {
  return slots_[caches_[c].device.index()].slots[caches_[c].turn.slot];
}

KvLayer KvStream::view(size_t c) const {
  KvLayer view = host(c);
  if (caches_[c].device.is_host()) {
    view.k_spilled = spilled_.slot(caches_[c].turn.slot);
    view.v_spilled = view.k_spilled + spilled_v_offset(view);
    return view;
  }
  const DevicePtr base = slots_[caches_[c].device.index()].slots[caches_[c].turn.slot].base;
  const auto address = [&](Part part) {
    const Pieces pieces = pieces_of(view, part);
    return pieces.n_bytes > 0 && pieces.n > 0 ? base + offset_of(view, part) : nullptr;
  };
  view.k = base;
  view.v = address(kValues);
  view.k_open = address(kOpenKeys);
  view.v_open = address(kOpenValues);
  view.open_table = address(kOpenTable);
  view.indexed = false;
  view.index = nullptr;
  return view;
}

void KvStream::begin(std::span<const int32_t> block_table, std::span<const int32_t> slots,
                     std::span<const SequenceStep> sequences) {
  block_table_ = block_table;
  sequences_ = sequences;
  n_blocks_ = block_table.empty() ? 0 : *std::max_element(block_table.begin(), block_table.end()) + 1;
  written_.clear();
  n_open_ = 0;
  if (caches_.empty()) return;
  const KvLayer* grouped = nullptr;
  for (size_t c = 0; c < caches_.size() && !grouped; ++c) grouped = host(c).n_open > 0 ? &host(c) : nullptr;
  for (size_t i = 0; grouped && i < block_table.size(); ++i)
    n_open_ = std::max<int64_t>(n_open_, grouped->open_of[block_table[i]] + 1);
  const auto block_size =
      static_cast<int32_t>(host(0).block_size);  // of layers with rows; states are blocks of one
  for (int32_t s : slots) {
    const int32_t block = s / block_size;
    if (std::find(written_.begin(), written_.end(), block) == written_.end()) written_.push_back(block);
  }
}

// The blocks on disk, from the first one on, among which are all that the step's attention reads.
int64_t KvStream::spilled_blocks(const KvLayer& l) const {
  const size_t n_row = block_table_.size() / std::max<size_t>(1, sequences_.size());
  int64_t n = 0;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const auto& [n_tokens, n_past] = sequences_[i];
    const int64_t first = l.window > 0 ? std::max<int64_t>(0, n_past - l.window + 1) / l.block_size : 0;
    const int64_t end = ceil_div(n_past + n_tokens, l.block_size);
    const std::span<const int32_t> row = block_table_.subspan(i * n_row, n_row);
    for (int64_t b = first; b < end; ++b) n = std::max(n, row[static_cast<size_t>(b)] - l.n_blocks + 1);
  }
  return n;
}

void KvStream::fetch(size_t c) {
  if (caches_[c].device.is_host()) {
    const KvLayer& l = host(c);
    const auto n = static_cast<size_t>(spilled_blocks(l));
    if (n == 0) return;
    const size_t k_bytes = align_up(n * k_block_bytes(l), kDiskAlignment);
    const size_t v_bytes = align_up(n * v_block_bytes(l), kDiskAlignment);
    const DiskLayout layout{{{l.k_spilled, k_bytes, 0}, {l.v_spilled, v_bytes, spilled_v_offset(l)}},
                            k_bytes + v_bytes};
    return spilled_.fetch(layout, caches_[c].turn.slot);
  }
  Slot& slot = slot_of(c);
  const std::array<DevicePtr, kParts> there = addresses_of(view(c));
  std::array<DevicePtr, kParts> here = addresses_of(host(c));
  here[kOpenTable] = reinterpret_cast<DevicePtr>(const_cast<int32_t*>(host(c).open_of));  // only read
  for (size_t i = 0; i < kParts; ++i) {
    const int64_t n = i == kOpenKeys || i == kOpenValues ? n_open_ : n_blocks_;
    if (!there[i] || n == 0) continue;
    Weight& part = parts_[kParts * c + i];
    const size_t piece_bytes = pieces_of(host(c), i).n_bytes, n_bytes = piece_bytes * static_cast<size_t>(n);
    part = as_floats(here[i], n_bytes);
    if (pinned_ && i != kOpenTable && host(c).n_spilled == 0) {
      const int64_t n_all = i == kOpenKeys || i == kOpenValues ? host(c).n_open : host(c).n_blocks;
      pinned_->fetching_pool(device_of(c), here[i], n_bytes, piece_bytes * static_cast<size_t>(n_all));
    }
    slot.fetched = device_of(c).fetch(there[i], part, slot.released);
  }
}

void KvStream::join(size_t c) {
  if (caches_[c].device.is_host()) return spilled_.wait(caches_[c].turn.slot);
  device_of(c).join(slot_of(c).fetched);
}

void KvStream::write_back(size_t c) {
  Device& device = device_of(c);
  const std::array<DevicePtr, kParts> there = addresses_of(view(c)), here = addresses_of(host(c));
  const auto copy = [&](Part part, int32_t piece) {
    const size_t n_bytes = pieces_of(host(c), part).n_bytes, at = n_bytes * static_cast<size_t>(piece);
    if (there[part]) device.copy_out(here[part] + at, there[part] + at, n_bytes);
  };
  for (const int32_t block : written_) {  // of grouped dtypes they are open
    there[kOpenKeys] ? copy(kOpenKeys, host(c).open_of[block]) : copy(kKeys, block);
    there[kOpenValues] ? copy(kOpenValues, host(c).open_of[block]) : copy(kValues, block);
  }
  slot_of(c).released = device.record();
}

}  // namespace tandem
