#include "exec/placed_graph.h"

#include "exec/split_attention.h"

namespace tandem {

Graph placed_graph(Graph graph, const Placement& placement, CacheReach reach) {
  if (placement.splits_caches()) graph = split_attention(std::move(graph), placement, reach);
  return graph;
}

}  // namespace tandem
