#include "exec/slots.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace tandem {

std::vector<SlotTurn> slot_turns(std::span<const size_t> items, size_t n_slots) {
  std::vector<SlotTurn> turns;
  for (size_t i = 0; i < items.size(); ++i) {
    const size_t after = i + n_slots;
    turns.push_back({i % n_slots, items[after < items.size() ? after : i % n_slots], i < n_slots});
  }
  return turns;
}

std::vector<PrefetchedLayer> prefetched_layers(const Placement& placement) {
  std::vector<PrefetchedLayer> caches;
  std::map<DeviceId, std::vector<size_t>> by_device;
  for (size_t i = 0; i < placement.layers.size(); ++i) {
    const auto* prefetched = std::get_if<PrefetchedKv>(&placement.layers[i].kv);
    if (!prefetched && !std::holds_alternative<SpilledKv>(placement.layers[i].kv)) continue;
    const DeviceId device = prefetched ? DeviceId(prefetched->to) : DeviceId::host();
    by_device[device].push_back(caches.size());
    caches.push_back({static_cast<int>(i), device, {}});
  }
  for (const auto& [device, items] : by_device) {
    const std::vector<SlotTurn> turns = slot_turns(items, placement.n_stream_slots);
    for (size_t i = 0; i < items.size(); ++i) caches[items[i]].turn = turns[i];
  }
  return caches;
}

std::vector<PrefetchedLayer> prefetched_layers(const Placement& placement, StepKind kind) {
  std::vector<PrefetchedLayer> caches = prefetched_layers(placement);
  const auto is_used = [&](const PrefetchedLayer& cache) {
    return attends_on(placement.layers[static_cast<size_t>(cache.layer)].kv, kind) == cache.device;
  };
  const auto n_used = static_cast<size_t>(std::ranges::count_if(caches, is_used));
  TANDEM_CHECK(n_used == 0 || n_used == caches.size());
  if (n_used == 0) caches.clear();
  return caches;
}

}  // namespace tandem
