#include "device/lowering.h"

namespace tandem {

std::span<const int32_t> linear_group(const SegmentView& view, std::span<const int32_t> nodes) {
  const auto linear = [&](size_t i) { return std::get_if<LinearOp>(&view.node(nodes[i]).op); };
  size_t n = 1;
  while (n < nodes.size() && linear(n) && linear(n)->x == linear(0)->x) ++n;
  return nodes.first(n);
}

}  // namespace tandem
