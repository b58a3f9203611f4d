// Attention over split caches: that of a layer becomes attention over the hot cache on the device
// where it lies, attention over the cold cache on the host, and their merge on the device. The device is asked
// first, so that both compute at the same time. A window that the hot cache always holds is attended to
// there alone.
#pragma once

#include "exec/placed_graph.h"

namespace tandem {

// For a placement that splits caches.
Graph split_attention(Graph graph, const Placement& placement, CacheReach reach);

}  // namespace tandem
