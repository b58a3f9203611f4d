// EvictionOrder: which slot of a cache goes first. The policy of the expert store: least recently used first.
// Any other policy has the same three functions. Not synchronized.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem {

class EvictionOrder {
 public:
  EvictionOrder() : EvictionOrder(0) {}
  explicit EvictionOrder(size_t n_slots);

  void used(size_t slot) { move(slot, n_slots()); }  // goes last
  void unwanted(size_t slot);                        // goes first
  // Returns the first slot for which can_go(slot) holds; n_slots() if there is none.
  template <class CanGo>
  size_t first(const CanGo& can_go) const {
    size_t slot = links_[n_slots()].next;
    while (slot != n_slots() && !can_go(slot)) slot = links_[slot].next;
    return slot;
  }
  size_t n_slots() const { return links_.size() - 1; }

 private:
  struct Link {
    uint32_t before, next;
  };
  void move(size_t slot, size_t before);

  std::vector<Link> links_;  // a ring; the last element is its head
};

}  // namespace tandem
