#include "exec/eviction_order.h"

namespace tandem {

EvictionOrder::EvictionOrder(size_t n_slots) {
  const auto n = static_cast<uint32_t>(n_slots);
  for (uint32_t i = 0; i <= n; ++i) links_.push_back({i == 0 ? n : i - 1, i == n ? 0 : i + 1});
}

void EvictionOrder::unwanted(size_t slot) {
  const size_t first = links_[n_slots()].next;
  if (first != slot) move(slot, first);
}

// Takes the slot out of the ring and puts it in before another one.
void EvictionOrder::move(size_t slot, size_t before) {
  Link& link = links_[slot];
  links_[link.before].next = link.next;
  links_[link.next].before = link.before;
  link = {links_[before].before, static_cast<uint32_t>(before)};
  links_[link.before].next = static_cast<uint32_t>(slot);
  links_[before].before = static_cast<uint32_t>(slot);
}

}  // namespace tandem
