// Slots: memory that layers pass through, one after the other.
#pragma once

#include <algorithm>
#include <cstddef>

namespace tandem {

// How many a device needs, and how large each must be.
struct SlotNeeds {
  size_t n_slots = 0;
  size_t slot_bytes = 0;

  size_t n_bytes() const { return n_slots * slot_bytes; }
  SlotNeeds united(const SlotNeeds& other) const {
    return {std::max(n_slots, other.n_slots), std::max(slot_bytes, other.slot_bytes)};
  }
};

}  // namespace tandem
