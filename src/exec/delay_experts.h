// Deferred experts (moe_ffn that joins later) on the host run as late as no other work of the host has to wait: while GPUs
// compute the next layer's attention.
#pragma once

#include "exec/placement.h"

namespace tandem {

// Whether nodes of the graph are to be moved.
bool delays_experts(const Graph& graph, const Placement& placement);

// Moves each such node of the host before the next node that runs there or reads its result. Nodes whose weights pass
// through slots stay with their layer. Results stay the same.
Graph delay_experts(Graph graph, const Placement& placement);

}  // namespace tandem
