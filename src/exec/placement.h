// Placement: which device holds each layer's weights and each layer's cache. The one structure that flags and
// planners produce and that the executor reads. Devices are numbered by their place in the executor's list; 0 is the
// host (a device whose info says host_memory).
#pragma once

#include <vector>

#include "device/device.h"

namespace tandem {

struct LayerPlacement {
  int weights = 0;  // linear, glu, norms, rope run here
  int kv = 0;       // the cache lies here; kv_write and attention run beside it
};

struct Placement {
  int input = 0;                       // the embedding table; nodes before the first layer
  std::vector<LayerPlacement> layers;  // one for each layer of the model
  int output = 0;                      // the output norm and head

  // Everything on the host.
  static Placement host_only(int n_layer) { return Placement{0, std::vector<LayerPlacement>(static_cast<size_t>(n_layer)), 0}; }

  // The device that runs a node.
  int device_of(const Node& node) const;
};

}  // namespace tandem
