#include "plan/imagined_device.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"

namespace tandem {

ImaginedDevice::ImaginedDevice(std::string name, size_t memory_bytes, WeightBytes weight_bytes)
    : memory_bytes_(memory_bytes), weight_bytes_(std::move(weight_bytes)) {
  info_.name = std::move(name);
  info_.description = "to plan for";
}

size_t ImaginedDevice::scratch_bytes(const Segment& segment) {
  const Graph& graph = *segment.graph;
  size_t most = 0;
  for (int32_t i : segment.nodes) {
    const Node& node = graph.nodes[static_cast<size_t>(i)];
    const bool multiplies = std::holds_alternative<LinearOp>(node.op) ||
                            std::holds_alternative<GluOp>(node.op) ||
                            std::holds_alternative<MoeFfnOp>(node.op);
    if (!multiplies) continue;
    const Tensor& x = graph.tensor(node.inputs.front());
    // A byte an element, and a scale and a sum for each 32.
    most = std::max(most, static_cast<size_t>(x.n_rows) * static_cast<size_t>(x.n_cols) * 5 / 4);
  }
  return align_up(most, 256);
}

void ImaginedDevice::refuse() const {
  throw_error(ErrorCode::bug, "%s is only to plan for", info_.name.c_str());
}

}  // namespace tandem
