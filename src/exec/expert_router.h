// ExpertRouter: what ranks a layer's experts, found in a graph, so that a guess can be made before the router runs.
//
// Pure functions; any thread.
#pragma once

#include "graph/graph.h"

namespace tandem {

// The product of this matrix and the layer's input, chosen from as moe_route does.
struct ExpertRouter {
  const Weight* matrix = nullptr;          // [n_expert, n_cols]; null: not ranked by a product alone
  const Weight* bias = nullptr;            // [n_expert]? of the product
  const Weight* selection_bias = nullptr;  // [n_expert]? of the choice
  MoeRouteParams how;
};

// The router of these experts, also where the graph divides them.
ExpertRouter router_of(const Graph& graph, const MoeFfnOp& op);

}  // namespace tandem
