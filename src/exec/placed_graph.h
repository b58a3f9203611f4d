// The graph that runs under a placement: what the architecture built, with the nodes that run in parts on
// several devices replaced by those parts. Tensor ids stay what they were; new tensors come after them.
#pragma once

#include <optional>

#include "exec/placement.h"

namespace tandem {

// What a step needs of split caches. As long as the hot cache holds all there is, the host has nothing to do and nothing crosses the bus for it.
enum class CacheReach : uint8_t { both_caches, hot_cache };

Graph placed_graph(Graph graph, const Placement& placement, CacheReach reach = CacheReach::both_caches);

// The same for those who only look: a copy is made where something is replaced. `graph` outlives it.
class PlacedGraph {
 public:
  PlacedGraph(const Graph& graph, const Placement& placement, CacheReach reach = CacheReach::both_caches);
  const Graph& operator*() const { return own_ ? *own_ : *graph_; }

 private:
  const Graph* graph_;
  std::optional<Graph> own_;
};

}  // namespace tandem
