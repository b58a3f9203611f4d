// The graph that runs under a placement: what the architecture built, with the nodes that run in parts on several
// devices replaced by those parts. Tensor ids stay what they were; new tensors come after them.
#pragma once

#include "exec/placement.h"

namespace tandem {

Graph placed_graph(Graph graph, const Placement& placement);

}  // namespace tandem
