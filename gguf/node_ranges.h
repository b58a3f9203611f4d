// How the tensors of a file are divided over NUMA nodes.
#pragma once

#include <span>
#include <vector>

#include "gguf/file.h"

namespace tandem {

// Of the tensors in this part of a model: each node's rows of every matrix that is worth it, as workers divide them
// (base/numa.h). Experts are left out, and so are interleaved: which of them a step uses is not known.
std::vector<NodeRange> node_ranges(std::span<const TensorInfo> tensors, int part, const NodeShares& nodes);

}  // namespace tandem
