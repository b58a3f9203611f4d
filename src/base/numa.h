// NUMA nodes: which processors are close to which memory.
#pragma once

#include <vector>

namespace tandem {

// Returns the processors that this process may run on, by node; never empty. Reads /sys.
std::vector<std::vector<int>> numa_nodes();
// Returns the index in `nodes` of the node that the calling thread runs on.
int current_numa_node(const std::vector<std::vector<int>>& nodes);

// Binds the calling thread to these processors. Returns false when the system refuses.
bool bind_thread(const std::vector<int>& cpus);

}  // namespace tandem
