// The graph that runs under a placement: nodes of the architecture's graph that run in parts on several
// devices are replaced by those parts. Tensor ids do not change; new tensors come after the existing ones.
#pragma once

#include <optional>

#include "exec/parts.h"
#include "exec/placement.h"

namespace tandem {

// The parts of split caches that a step reads. While the hot cache holds all positions, the host has no
// attention to compute and nothing crosses the bus for it.
enum class CacheReach : uint8_t { both_caches, hot_cache };

Graph placed_graph(Graph graph, const Placement& placement, CacheReach reach = CacheReach::both_caches);

// A read-only placed graph. Copies `graph` only if something is replaced. `graph` outlives it.
class PlacedGraph {
 public:
  PlacedGraph(const Graph& graph, const Placement& placement, CacheReach reach = CacheReach::both_caches);
  explicit PlacedGraph(PartedGraph graph) : own_(std::move(graph.graph)), parts_(std::move(graph.parts)) {}
  const Graph& operator*() const { return own_ ? *own_ : *graph_; }
  const StepParts& parts() const { return parts_; }

 private:
  const Graph* graph_ = nullptr;
  std::optional<Graph> own_;
  StepParts parts_;
};

}  // namespace tandem
