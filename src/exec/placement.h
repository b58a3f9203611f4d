// Placement: the homes of each layer's weights, experts and cache (see homes.h), and the devices of
// everything else. Options and planners produce it; footprint, cost, explain and executor read it.
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "exec/homes.h"
#include "exec/weight_slices.h"

namespace tandem {

struct LayerPlacement {
  WeightHome weights = InMemory{};  // where linear, glu, norms, rope and routing run
  ExpertHome experts = InMemory{};  // where moe_ffn runs
  KvHome kv = ResidentKv{};         // where kv_write and attention run

  // Returns whether GPUs hold all of its weights.
  bool is_resident() const;
  // Returns whether matrices of the layer are read from disk for every step.
  bool reads_disk() const;
  // Returns whether steps read only chosen experts of the layer.
  bool reads_chosen() const;
  bool divides_rows(StepKind kind) const;
  bool operator==(const LayerPlacement&) const = default;
};

// Prefill steps of `from` tokens or more go through the layers in `count` parts (parts.h); 0 or 1: none do.
struct PrefillParts {
  int64_t count = 0, from = 0;
  bool operator==(const PrefillParts&) const = default;
};

// Devices that compute every layer together whose home is one of them (tensor_parallel.h).
struct TensorParallel {
  std::vector<DeviceId> devices;  // two or more, each once
  std::vector<double> shares;     // of each, at least 0, and more than 0 in all
  PrefillParts parts = {};

  std::optional<size_t> find(DeviceId device) const;  // its index
};

struct Placement {
  DeviceId input = DeviceId::host();            // the embedding table; nodes before the first layer
  std::vector<LayerPlacement> layers;           // one per layer of the model
  DeviceId output = DeviceId::host();           // the output norm and head
  size_t n_stream_slots = 2;                    // stream slots on each device that layers are streamed to
  size_t n_disk_slots = 2;                      // host slots for layers read from disk
  std::optional<TensorParallel> parallel = {};  // none: a layer's op runs on one device
  bool pins_fetched = false;  // weights that are fetched from host memory are page-locked after a while (pinned_weights.h)
  size_t n_expert_bytes = 0;  // host memory for chosen experts; the least that works if that is more
  // Nodes with these weights run on these devices, regardless of the homes.
  std::unordered_map<const Weight*, DeviceId> overrides;
  // The slices of divided weights; copies of a placement share them.
  std::shared_ptr<WeightSlices> slices = std::make_shared<WeightSlices>();

  // Everything on the host.
  static Placement host_only(size_t n_layer);

  // Returns how caches are split, the same in all layers with a split cache; null if none is.
  const SplitKv* split() const;
  bool splits_caches() const { return split() != nullptr; }
  bool reads_disk() const;                   // in any layer
  bool reads_chosen() const;                 // in any layer
  bool divides_rows(StepKind kind) const;    // in any layer
  bool caches_experts(StepKind kind) const;  // of any layer

  // Returns the device that runs a node.
  DeviceId runs_on(const Graph& graph, const Node& node) const;
  // Returns whether a node reads this weight of its own layer from a stream slot. Vectors are never
  // streamed: they are too small to be worth it and stay on the device.
  bool streams(const Graph& graph, const Node& node, const Weight& weight) const;
  // Returns whether the host takes chosen experts of this matrix instead of all: the expert store has them.
  bool takes_chosen(const Graph& graph, const Node& node, const Weight& weight) const;
  // Returns whether the weight is read from disk when a node streams it or takes some of it.
  bool on_disk(const Weight& weight) const;
  // Returns the home of the weights that decide where a node runs; null for cache ops and outside of
  // layers.
  const WeightHome* home_of(const Node& node) const;
  // Returns the home of the node's matrices: the same, and that of the layer's weights for latent attention, which has
  // matrices and runs with the cache.
  const WeightHome* matrices_home(const Node& node) const;

 private:
  const LayerPlacement* layer_of(int layer) const;
  const DeviceId* override_of(const Graph& graph, const Node& node) const;
};

// Returns whether the weight belongs to the experts of a layer: their matrices, biases or scales.
bool is_of_experts(const Weight& weight);

}  // namespace tandem
