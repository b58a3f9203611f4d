// Both at once: the rows of the matrices of a streamed layer are divided between the layer's device, which
// has its rows brought to it, and the host, which reads the others where they lie. Both compute at the same
// time, and the device joins the results and goes on with what is not a product.
#pragma once

#include "exec/placement.h"

namespace tandem {

// Rows that the device computes of a matrix of n_rows when its share is `share`: whole strips of the kernels,
// and some for each side; all of a matrix that is too small to be divided.
int64_t device_rows(int64_t n_rows, double share);

// Experts are not divided. The host, which reads only those that are chosen, computes them in steps that
// cannot choose them all; in others they are streamed.
bool host_computes_experts(const Graph& graph, const MoeFfnOp& op);

// The graph with the linear and glu nodes of layers whose rows are divided (RowsShared) replaced by
// a part for the device, a part for the host and a join. Results are those of the whole product, bit for bit
// where the kernels' do not depend on which rows are computed together.
Graph divide_rows(Graph graph, const Placement& placement);

}  // namespace tandem
