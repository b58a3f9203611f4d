#include "exec/placement.h"

#include <algorithm>

#include "base/error.h"

namespace tandem {

bool is_of_experts(const Weight& weight) {
  return weight.name.find("_exps.") != std::string::npos;
}

bool LayerPlacement::is_resident() const {
  return std::holds_alternative<Resident>(weights) && std::holds_alternative<Resident>(experts);
}

bool LayerPlacement::reads_disk() const {
  return std::holds_alternative<OnDisk>(weights) || std::holds_alternative<OnDisk>(experts);
}

bool LayerPlacement::reads_chosen() const {
  return tandem::reads_chosen(experts, StepKind::decode) || tandem::reads_chosen(experts, StepKind::prefill);
}

bool LayerPlacement::divides_rows(StepKind kind) const {
  return row_share(weights, kind) < 1 || row_share(experts, kind) < 1;
}

std::optional<size_t> TensorParallel::find(DeviceId device) const {
  const auto found = std::ranges::find(devices, device);
  return found == devices.end() ? std::nullopt : std::optional(static_cast<size_t>(found - devices.begin()));
}

Placement Placement::host_only(size_t n_layer) {
  Placement placement;
  placement.layers.resize(n_layer);
  return placement;
}

const SplitKv* Placement::split() const {
  for (const LayerPlacement& layer : layers) {
    if (const auto* split = std::get_if<SplitKv>(&layer.kv)) return split;
  }
  return nullptr;
}

bool Placement::reads_disk() const {
  return std::ranges::any_of(layers, [](const LayerPlacement& l) { return l.reads_disk(); });
}

bool Placement::reads_chosen() const {
  return std::ranges::any_of(layers, [](const LayerPlacement& l) { return l.reads_chosen(); });
}

bool Placement::divides_rows(StepKind kind) const {
  return std::ranges::any_of(layers, [&](const LayerPlacement& l) { return l.divides_rows(kind); });
}

bool Placement::caches_experts(StepKind kind) const {
  return std::ranges::any_of(
      layers, [&](const LayerPlacement& l) { return cached_experts(l.experts, kind) != nullptr; });
}

// Returns null before the first layer and after the last one.
const LayerPlacement* Placement::layer_of(int layer) const {
  const bool in_layer = layer >= 0 && static_cast<size_t>(layer) < layers.size();
  return in_layer ? &layers[layer] : nullptr;
}

const WeightHome* Placement::home_of(const Node& node) const {
  const LayerPlacement* layer = layer_of(node.layer);
  if (!layer || uses_cache(node.op)) return nullptr;
  return std::holds_alternative<MoeFfnOp>(node.op) ? &layer->experts : &layer->weights;
}

const WeightHome* Placement::matrices_home(const Node& node) const {
  return std::holds_alternative<LatentAttentionOp>(node.op) ? &layer_of(node.layer)->weights : home_of(node);
}

// Returns the device of the first of the node's weights that has an override; null if none has.
const DeviceId* Placement::override_of(const Graph& graph, const Node& node) const {
  if (overrides.empty()) return nullptr;
  for (TensorId id : inputs_of(node.op)) {
    if (graph.tensor(id).weight == nullptr) continue;
    const auto found = overrides.find(graph.tensor(id).weight);
    if (found != overrides.end()) return &found->second;
  }
  return nullptr;
}

DeviceId Placement::runs_on(const Graph& graph, const Node& node) const {
  if (node.device) return *node.device;
  if (const DeviceId* device = override_of(graph, node); device && !uses_cache(node.op)) return *device;
  if (const WeightHome* home = home_of(node)) return computes_on(*home, step_kind(graph.shape));
  if (const LayerPlacement* layer = layer_of(node.layer)) return attends_on(layer->kv, step_kind(graph.shape));
  TANDEM_CHECK(node.layer <= static_cast<int>(layers.size()));
  return node.layer < 0 ? input : output;
}

bool Placement::streams(const Graph& graph, const Node& node, const Weight& weight) const {
  const bool own_matrix = weight.layer == node.layer && weight.n_rows * weight.n_mats > 1;
  const WeightHome* home = matrices_home(node);
  if (!own_matrix || !home) return false;
  const DeviceId* device = override_of(graph, node);
  if (!(device ? *device : holder(*home)).is_host()) return false;
  return !runs_on(graph, node).is_host() || (on_disk(weight) && !takes_chosen(graph, node, weight));
}

bool Placement::takes_chosen(const Graph& graph, const Node& node, const Weight& weight) const {
  if (!std::holds_alternative<MoeFfnOp>(node.op) || weight.layer != node.layer || weight.n_mats == 1 ||
      !weight.in_file)
    return false;
  const WeightHome* home = home_of(node);
  return home && tandem::reads_chosen(*home, step_kind(graph.shape)) && runs_on(graph, node).is_host();
}

bool Placement::on_disk(const Weight& weight) const {
  const LayerPlacement* layer = layer_of(weight.layer);
  if (!layer || !weight.in_file || weight.n_rows * weight.n_mats == 1) return false;
  if (!is_of_experts(weight)) return std::holds_alternative<OnDisk>(layer->weights);
  const bool stays = layer->reads_chosen() && weight.n_mats == 1;  // a bias
  return std::holds_alternative<OnDisk>(layer->experts) && !stays;
}

}  // namespace tandem
