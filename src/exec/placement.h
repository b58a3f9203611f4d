// Placement: the homes of each layer's weights, experts and cache (see homes.h), and where the rest runs. The
// one structure that options and planners produce and that footprint, cost, explain and executor read.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "exec/homes.h"
#include "exec/weight_slices.h"

namespace tandem {

struct LayerPlacement {
  WeightHome weights = InMemory{};  // linear, glu, norms, rope and routing run by this
  ExpertHome experts = InMemory{};  // moe_ffn runs by this
  KvHome kv = ResidentKv{};         // kv_write and attention run by this

  // Whether GPUs hold all of its weights.
  bool is_resident() const;
  // Whether matrices of the layer are read from disk for every step.
  bool reads_disk() const;
  bool divides_rows(StepKind kind) const;
  bool operator==(const LayerPlacement&) const = default;
};

struct Placement {
  DeviceId input = DeviceId::host();   // the embedding table; nodes before the first layer
  std::vector<LayerPlacement> layers;  // one for each layer of the model
  DeviceId output = DeviceId::host();  // the output norm and head
  size_t n_stream_slots = 2;           // layers that a device has room for to stream into
  size_t n_disk_slots = 2;             // layers that host memory has room for to read into
  // Nodes of these weights run there, whatever the homes say.
  std::unordered_map<const Weight*, DeviceId> overrides;
  // What divided weights are cut into; copies of a placement share it.
  std::shared_ptr<WeightSlices> slices = std::make_shared<WeightSlices>();

  // Everything on the host.
  static Placement host_only(size_t n_layer);

  // How caches are split, which is the same in all layers whose cache is; null when none is.
  const SplitKv* split() const;
  bool splits_caches() const { return split() != nullptr; }
  bool reads_disk() const;                 // of any layer
  bool divides_rows(StepKind kind) const;  // of any layer

  // The device that runs a node.
  DeviceId runs_on(const Graph& graph, const Node& node) const;
  // Whether a node reads this weight of its own layer from a slot that it was streamed into. Vectors are not
  // worth the trouble: they stay on the device.
  bool streams(const Graph& graph, const Node& node, const Weight& weight) const;
  // Whether the weight is one that is read from disk, where a node streams it.
  bool on_disk(const Weight& weight) const;
  // The home of the weights that a node of a layer works by; null beside a cache, and outside of layers.
  const WeightHome* home_of(const Node& node) const;

 private:
  const LayerPlacement* layer_of(int layer) const;
  const DeviceId* override_of(const Graph& graph, const Node& node) const;
};

}  // namespace tandem
