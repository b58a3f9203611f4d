// Replaces attention over a split cache by attention over the hot cache on its device, attention over the
// cold cache on the host, and their merge on the device. The hot part is issued first, so both compute at
// the same time. If the window always fits in the hot cache, there is no cold part. Latent
// attention takes its absorbed form.
#pragma once

#include "exec/placed_graph.h"

namespace tandem {

// For a placement that splits caches.
Graph split_attention(Graph graph, const Placement& placement, CacheReach reach);

}  // namespace tandem
