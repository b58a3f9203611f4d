#include "exec/placement.h"

#include "base/error.h"

namespace tandem {

int Placement::device_of(const Node& node) const {
  if (node.layer < 0) return input;
  const auto layer = static_cast<size_t>(node.layer);
  TANDEM_CHECK(layer <= layers.size());
  if (layer == layers.size()) return output;
  const bool beside_cache =
      std::holds_alternative<KvWriteOp>(node.op) || std::holds_alternative<AttentionOp>(node.op);
  return beside_cache ? layers[layer].kv : layers[layer].weights;
}

}  // namespace tandem
