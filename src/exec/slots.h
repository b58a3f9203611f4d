// Stream slots: memory that layers pass through one after the other, and the order in which they do.
// Streamed weights, prefetched caches and layers read from disk take turns in their slots.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "exec/placement.h"

namespace tandem {

// The number and the size of the slots that a device needs.
struct SlotNeeds {
  size_t n_slots = 0;
  size_t slot_bytes = 0;

  size_t n_bytes() const { return n_slots * slot_bytes; }
  SlotNeeds united(const SlotNeeds& other) const {
    return {std::max(n_slots, other.n_slots), std::max(slot_bytes, other.slot_bytes)};
  }
};

struct SlotTurn {
  size_t slot = 0;
  size_t next = 0;     // the item that has the slot next; itself if it is the only one
  bool first = false;  // has the slot when a step begins
};
// Returns the turns of items that share n_slots in rotation. After the last items come the first ones, for
// the next step.
std::vector<SlotTurn> slot_turns(std::span<const size_t> items, size_t n_slots);

// A layer's cache in host memory that is copied to a device slot for every step; on the host, one of which a part on disk
// is read into a host slot.
struct PrefetchedLayer {
  int layer;
  DeviceId device;
  SlotTurn turn;  // `next` is an index among the placement's prefetched caches
};
std::vector<PrefetchedLayer> prefetched_layers(const Placement& placement);  // by layer
// Those that steps of a kind use: all, or none.
std::vector<PrefetchedLayer> prefetched_layers(const Placement& placement, StepKind kind);

}  // namespace tandem
