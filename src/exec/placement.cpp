#include "exec/placement.h"

#include <algorithm>

#include "base/error.h"

namespace tandem {

// Where the first of a node's weights that has an override is to be; null when none has.
const int* Placement::override_of(const Graph& graph, const Node& node) const {
  if (overrides.empty()) return nullptr;
  for (TensorId id : inputs_of(node.op)) {
    if (graph.tensor(id).weight == nullptr) continue;
    const auto found = overrides.find(graph.tensor(id).weight);
    if (found != overrides.end()) return &found->second;
  }
  return nullptr;
}

int Placement::home_of(const Graph& graph, const Node& node) const {
  if (const int* device = override_of(graph, node)) return *device;
  if (node.layer < 0) return input;
  const auto layer = static_cast<size_t>(node.layer);
  TANDEM_CHECK(layer <= layers.size());
  if (layer == layers.size()) return output;
  if (std::holds_alternative<MoeFfnOp>(node.op)) return layers[layer].experts;
  const bool beside_cache =
      std::holds_alternative<KvWriteOp>(node.op) || std::holds_alternative<AttentionOp>(node.op);
  if (!beside_cache) return layers[layer].weights;
  if (layers[layer].kv != 0) return layers[layer].kv;
  return layers[layer].kv_recent != 0 ? layers[layer].kv_recent : layers[layer].kv_prefetched;
}

bool Placement::splits_caches() const {
  return std::any_of(layers.begin(), layers.end(),
                     [](const LayerPlacement& l) { return l.kv == 0 && l.kv_recent != 0; });
}

int Placement::device_of(const Graph& graph, const Node& node) const {
  if (node.device >= 0) return node.device;
  const int home = home_of(graph, node);
  const bool in_layer = node.layer >= 0 && static_cast<size_t>(node.layer) < layers.size();
  const bool beside_cache =
      std::holds_alternative<KvWriteOp>(node.op) || std::holds_alternative<AttentionOp>(node.op);
  if (home != 0 || !in_layer || beside_cache || override_of(graph, node)) return home;
  return layers[static_cast<size_t>(node.layer)].streamed(graph.shape);
}

bool Placement::streams(const Graph& graph, const Node& node, const Weight& weight) const {
  const bool own_matrix = weight.layer == node.layer && weight.n_rows * weight.n_mats > 1;
  if (!own_matrix || home_of(graph, node) != 0) return false;
  return device_of(graph, node) != 0 || on_disk(weight);
}

bool Placement::on_disk(const Weight& weight) const {
  const bool in_layer = weight.layer >= 0 && static_cast<size_t>(weight.layer) < layers.size();
  return in_layer && layers[static_cast<size_t>(weight.layer)].from_disk && weight.in_file &&
         weight.n_rows * weight.n_mats > 1;
}

}  // namespace tandem
