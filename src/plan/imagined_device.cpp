#include "plan/imagined_device.h"

#include <algorithm>

#include "base/checked.h"

namespace tandem {
namespace {

// Returns the tensor that an op multiplies with matrices; kNoTensor if it has none.
TensorId input_of_products(const Op& op) {
  if (const auto* linear = std::get_if<LinearOp>(&op)) return linear->x;
  if (const auto* heads = std::get_if<HeadLinearOp>(&op)) return heads->x;
  if (const auto* glu = std::get_if<GluOp>(&op)) return glu->x;
  if (const auto* experts = std::get_if<MoeFfnOp>(&op)) return experts->x;
  return kNoTensor;
}

}  // namespace

ImaginedDevice::ImaginedDevice(std::string name, size_t memory_bytes, WeightBytes weight_bytes,
                               Support support)
    : memory_bytes_(memory_bytes), weight_bytes_(std::move(weight_bytes)), support_(std::move(support)) {
  info_.name = std::move(name);
  info_.description = "to plan for";
}

size_t ImaginedDevice::scratch_bytes(const Segment& segment) const {
  const Graph& graph = *segment.graph;
  size_t most = 0;
  for (int32_t i : segment.nodes) {
    const Node& node = graph.nodes[i];
    const TensorId multiplied = input_of_products(node.op);
    if (multiplied == kNoTensor) continue;
    const Tensor& x = graph.tensor(multiplied);
    // A byte an element, and a scale and a sum for each 32.
    most = std::max(most, static_cast<size_t>(x.n_rows) * static_cast<size_t>(x.n_cols) * 5 / 4);
  }
  return align_up(most, 256);
}

}  // namespace tandem
