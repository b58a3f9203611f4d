// Placement: which device holds each layer's weights, its experts and its cache. The one structure that flags and
// planners produce and that the executor reads. Devices are numbered by their place in the executor's list; 0 is the
// host (a device whose info says host_memory).
#pragma once

#include <unordered_map>
#include <vector>

#include "device/device.h"

namespace tandem {

struct LayerPlacement {
  int weights = 0;  // linear, glu, norms, rope and routing run here
  int experts = 0;  // moe_ffn runs here
  int kv = 0;       // the cache lies here; kv_write and attention run beside it
};

struct Placement {
  int input = 0;                       // the embedding table; nodes before the first layer
  std::vector<LayerPlacement> layers;  // one for each layer of the model
  int output = 0;                      // the output norm and head
  std::unordered_map<const Weight*, int> overrides;  // nodes of these weights run there, whatever the rest says

  // Everything on the host.
  static Placement host_only(int n_layer) {
    Placement placement;
    placement.layers.resize(static_cast<size_t>(n_layer));
    return placement;
  }

  // The device that runs a node.
  int device_of(const Graph& graph, const Node& node) const;
};

}  // namespace tandem
