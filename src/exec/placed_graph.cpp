#include "exec/placed_graph.h"

#include "exec/divide_rows.h"

namespace tandem {

Graph placed_graph(Graph graph, const Placement& placement) {
  return divide_rows(std::move(graph), placement);
}

}  // namespace tandem
