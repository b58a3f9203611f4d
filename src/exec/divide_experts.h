// Divides the experts of layers with some of them on a GPU (CachedExperts) between the GPU and the host. While a step
// runs, cached_route finds out which of the chosen experts the GPU has; it computes with these while the host computes
// with the others, and adds the sums.
#pragma once

#include <vector>

#include "exec/expert_router.h"
#include "exec/placement.h"

namespace tandem {

// Replaces each moe_ffn node of such a layer by cached_route for the GPU, moe_ffn there, cached_route for the host,
// moe_ffn there and, on the GPU, add. Results equal those of the whole node but for the order of the sum.
Graph divide_experts(Graph graph, const Placement& placement);

// A layer of which a GPU has some experts, as the nodes of a divided graph name it; n_used: of all its nodes.
struct CachedLayer {
  int layer = 0;
  DeviceId device = DeviceId::host();
  const Weight* down = nullptr;  // names it, as in CachedRouteOp
  // Its matrices and biases: all experts', and the GPU's slots.
  struct Slots {
    const Weight *whole, *slots;
  };
  std::vector<Slots> weights;
  int64_t n_expert = 0, n_slots = 0, n_used = 0;
  double fetched = 0, kept = 0;  // as in CachedExperts
  bool on_disk = false;          // the host has only some in memory
  ExpertRouter router;
};
std::vector<CachedLayer> cached_layers(const Graph& divided, const Placement& placement);

}  // namespace tandem
