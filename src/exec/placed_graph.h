// The graph that runs under a placement: what the architecture built, with the nodes that run in parts on
// several devices replaced by those parts. Tensor ids stay what they were; new tensors come after them.
#pragma once

#include "exec/placement.h"

namespace tandem {

// What a step needs of caches that are in two parts. As long as the recent part holds all there is, the host
// has nothing to do and nothing crosses the bus for it.
enum class CacheReach : uint8_t { both_parts, recent_part };

Graph placed_graph(Graph graph, const Placement& placement, CacheReach reach = CacheReach::both_parts);

}  // namespace tandem
