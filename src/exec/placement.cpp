#include "exec/placement.h"

#include "base/error.h"

namespace tandem {

int Placement::device_of(const Graph& graph, const Node& node) const {
  if (!overrides.empty()) {
    for (TensorId id : node.inputs) {
      if (id == kNoTensor || graph.tensor(id).weight == nullptr) continue;
      const auto found = overrides.find(graph.tensor(id).weight);
      if (found != overrides.end()) return found->second;
    }
  }
  if (node.layer < 0) return input;
  const auto layer = static_cast<size_t>(node.layer);
  TANDEM_CHECK(layer <= layers.size());
  if (layer == layers.size()) return output;
  if (std::holds_alternative<MoeFfnOp>(node.op)) return layers[layer].experts;
  const bool beside_cache =
      std::holds_alternative<KvWriteOp>(node.op) || std::holds_alternative<AttentionOp>(node.op);
  return beside_cache ? layers[layer].kv : layers[layer].weights;
}

}  // namespace tandem
