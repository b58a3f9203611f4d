// How much of a cache is in host memory where ContextOptions::kv_memory limits it; the rest is on disk (kv/spill.h).
#pragma once

#include "exec/placement.h"
#include "kv/cache.h"
#include "plan/options.h"

namespace tandem {

// Sets the blocks in memory: as many as leave room for the slots that those on disk are read into, so that all of the cache
// takes at most kv_memory. None on disk if everything fits. Throws Error(out_of_memory) for a limit that does not hold what a
// step writes, naming the least, and Error(usage) for caches that are not read from disk.
void set_kv_memory(KvConfig& kv, const ContextOptions& checked);

// Gives layers that spill their home. Throws Error(usage) if one of them is not on the host.
void spill_caches(Placement& placement, const KvConfig& kv);

}  // namespace tandem
