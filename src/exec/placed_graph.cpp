#include "exec/placed_graph.h"

#include "exec/delay_experts.h"
#include "exec/divide_experts.h"
#include "exec/divide_rows.h"
#include "exec/split_attention.h"
#include "exec/tensor_parallel.h"

namespace tandem {

Graph placed_graph(Graph graph, const Placement& placement, CacheReach reach) {
  if (placement.splits_caches()) graph = split_attention(std::move(graph), placement, reach);
  if (delays_experts(graph, placement)) graph = delay_experts(std::move(graph), placement);
  graph = divide_experts(divide_rows(std::move(graph), placement), placement);
  return placement.parallel ? divide_over_devices(std::move(graph), placement) : graph;
}

PlacedGraph::PlacedGraph(const Graph& graph, const Placement& placement, CacheReach reach) : graph_(&graph) {
  const StepKind kind = step_kind(graph.shape);
  if (placement.divides_rows(kind) || placement.caches_experts(kind) || placement.splits_caches() ||
      placement.parallel || delays_experts(graph, placement))
    own_ = placed_graph(graph, placement, reach);
}

}  // namespace tandem
