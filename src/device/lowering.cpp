#include "device/lowering.h"

namespace tandem {

std::span<const int32_t> linear_group(const SegmentView& view, std::span<const int32_t> nodes) {
  const auto x_of = [&](size_t i) { return view.node(nodes[i]).inputs[0]; };
  size_t n = 1;
  while (n < nodes.size() && std::holds_alternative<LinearOp>(view.node(nodes[n]).op) && x_of(n) == x_of(0))
    ++n;
  return nodes.first(n);
}

}  // namespace tandem
