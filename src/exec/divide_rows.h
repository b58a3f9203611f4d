// Divides the rows of a streamed layer's matrices between the layer's device, to which its share is
// streamed, and the host, which reads the others in place. Both compute at the same time. The device joins
// the results and runs all nodes that are not products.
#pragma once

#include "exec/placement.h"

namespace tandem {

// Returns the rows that the device computes of a matrix of n_rows at this share: whole strips of the
// kernels, with some rows left for each side; all rows if the matrix is too small to divide.
int64_t device_rows(int64_t n_rows, double share);

// Returns whether the host computes the experts of this graph. Experts are not divided: the host, which
// reads only the selected ones, computes them in steps that cannot select all of them; otherwise they are
// streamed.
bool host_computes_experts(const Graph& graph, const MoeFfnOp& op);

// Replaces the linear and glu nodes of layers with divided rows (RowsShared) by a part for the device, a
// part for the host and a join. Results equal those of the whole product, bit for bit if the kernels'
// results do not depend on which rows are computed together.
Graph divide_rows(Graph graph, const Placement& placement);

}  // namespace tandem
