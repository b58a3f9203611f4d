#include "exec/placed_graph.h"

#include "exec/divide_rows.h"
#include "exec/split_attention.h"

namespace tandem {

Graph placed_graph(Graph graph, const Placement& placement, CacheReach reach) {
  if (placement.splits_caches()) graph = split_attention(std::move(graph), placement, reach);
  return divide_rows(std::move(graph), placement);
}

PlacedGraph::PlacedGraph(const Graph& graph, const Placement& placement, CacheReach reach) : graph_(&graph) {
  if (placement.divides_rows(step_kind(graph.shape)) || placement.splits_caches())
    own_ = placed_graph(graph, placement, reach);
}

}  // namespace tandem
