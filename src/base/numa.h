// Memory nodes: which processors lie near which memory. On a machine with one node there is nothing to
// choose.
#pragma once

#include <vector>

namespace tandem {

// Processors that this process may run on, by node; never empty. Read from /sys.
std::vector<std::vector<int>> numa_nodes();
// Index in numa_nodes() of the node that the calling thread runs on now.
int current_numa_node(const std::vector<std::vector<int>>& nodes);

// Binds the calling thread to these processors; false when the system does not let us.
bool bind_thread(const std::vector<int>& cpus);

}  // namespace tandem
