// Whether tensors of a segment share memory.
#pragma once

#include "device/lowering.h"

namespace tandem {

// What is read for the last time may lie where something else is then made. An op that computes several nodes at once must
// not write the one while it still reads the other.
inline bool overlap(const SegmentView& view, TensorId a, TensorId b) {
  const auto* first = view.address<const std::byte>(a);
  const auto* second = view.address<const std::byte>(b);
  if (!first || !second) return false;  // nowhere yet: only the size of the scratch is asked for
  return first < second + view.tensor(b).n_bytes() && second < first + view.tensor(a).n_bytes();
}

}  // namespace tandem
