#include "exec/placed_graph.h"

#include <algorithm>

#include "exec/divide_rows.h"
#include "exec/split_attention.h"

namespace tandem {

Graph placed_graph(Graph graph, const Placement& placement, CacheReach reach) {
  if (placement.splits_caches()) graph = split_attention(std::move(graph), placement, reach);
  return divide_rows(std::move(graph), placement);
}

PlacedGraph::PlacedGraph(const Graph& graph, const Placement& placement, CacheReach reach) : graph_(&graph) {
  const bool divides = std::ranges::any_of(
      placement.layers, [&](const LayerPlacement& layer) { return layer.rows(graph.shape) < 1; });
  if (divides || placement.splits_caches()) own_ = placed_graph(graph, placement, reach);
}

}  // namespace tandem
