// NUMA nodes: which processors are close to which memory, and how work and memory are divided over them.
//
// Whatever is divided in order, the rows of a matrix and the workers that multiply them, is divided in the same proportions:
// so a worker finds its rows in the memory of its own node.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tandem {

// Returns the processors that the process may run on, as they were before bind_thread() was first called: a bound thread, and
// those that it starts, may use fewer.
const std::vector<int>& process_cpus();

struct NumaNode {
  int id = 0;             // the system's number
  std::vector<int> cpus;  // that this process may run on; not empty
};

// Returns the nodes that this process may run on; never empty. Reads /sys.
std::vector<NumaNode> numa_nodes(const std::string& folder = "/sys/devices/system/node");
// Returns the index in `nodes` of the node that the calling thread runs on.
size_t current_numa_node(const std::vector<NumaNode>& nodes);

// Binds the calling thread to these processors. Returns false when the system refuses.
bool bind_thread(const std::vector<int>& cpus);

// Moves the calling thread to a processor that is not one of these; where it may run stays as it was. Returns false when it may
// run on no other, or the system refuses. Allocates no memory.
bool move_thread_off(std::span<const int> cpus);

// The share of each node, by the number of its processors. Without nodes: one share, the whole.
class NodeShares {
 public:
  NodeShares() = default;
  explicit NodeShares(std::vector<NumaNode> nodes);

  size_t size() const { return nodes_.empty() ? 1 : nodes_.size(); }
  const NumaNode& node(size_t i) const { return nodes_[i]; }

  // Of n things in order, node i has [begin(i, n), begin(i + 1, n)).
  int64_t begin(size_t i, int64_t n) const;
  // Returns the node that has the item, 0 <= item < n.
  size_t node_of(int64_t item, int64_t n) const;

 private:
  std::vector<NumaNode> nodes_;
  std::vector<int64_t> first_cpu_;  // [nodes + 1] processors of all nodes before
};

// Asks the system to take the pages between these addresses, which nothing has touched yet, from the memory of one node, or
// page by page from all in turn. Parts of pages at both ends stay as they are. Returns false when the system refuses: then
// they come from the node of the thread that touches them first.
bool place_on_node(void* address, size_t n_bytes, int node_id);
bool interleave(void* address, size_t n_bytes, const NodeShares& shares);

}  // namespace tandem
