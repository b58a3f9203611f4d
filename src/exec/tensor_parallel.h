// Tensor parallel (arXiv:1909.08053): divides each layer over the devices of Placement::parallel. Attention heads, heads and
// channels of recurrent layers with their states (recurrent_cuts.h), rows of feed-forward units, experts and the rows of the
// output head are divided (tensor_cuts.h); norms, routers and the residual stream are computed by every device for itself.
// Where heads or units are multiplied by columns of a matrix, each device has a part of the sum, and an all_reduce adds the
// parts: twice a layer.
//
// What cannot be divided that way stays right, and costs more:
//   - columns that are no whole blocks of a quantized matrix: an all_gather of its input, rows of the matrix on each device,
//     and an all_gather of its output, which together are as many bytes as the all_reduce;
//   - a norm over heads that are divided (also of Mamba-2 with one group): on all devices, behind an all_gather; the product
//     behind it is divided all the same;
//   - nodes that the placement runs elsewhere (attention or a recurrence beside its cache in host memory, experts on the
//     host, layers of the host): their device gathers what they read, and the others copy the result.
#pragma once

#include "exec/placement.h"

namespace tandem {

// For a placement with `parallel`. Every node of the result names its device, but for top_k.
Graph divide_over_devices(Graph graph, const Placement& placement);

}  // namespace tandem
