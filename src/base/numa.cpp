#include "base/numa.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/error.h"

namespace tandem {
namespace {

constexpr uintptr_t kPage = 4096;
constexpr int kMaxNodes = 1024;  // as in kernels for large machines

// Parses a list like "0-3,8,10-11" from a file in /sys; empty when it cannot be read.
std::vector<int> read_list(const std::string& path) {
  std::vector<int> numbers;
  FILE* f = fopen(path.c_str(), "r");
  if (!f) return numbers;
  int first = 0, last = 0;
  while (fscanf(f, "%d", &first) == 1) {
    last = first;
    int c = fgetc(f);
    if (c == '-' && fscanf(f, "%d", &last) == 1) c = fgetc(f);
    for (int n = std::max(first, 0); n <= last && n < CPU_SETSIZE; ++n) numbers.push_back(n);
    if (c != ',') break;
  }
  fclose(f);
  return numbers;
}

bool set_policy(void* address, size_t n_bytes, int policy, const std::vector<int>& node_ids) {
  constexpr int kBits = 8 * sizeof(unsigned long);
  unsigned long mask[kMaxNodes / kBits] = {};
  for (const int id : node_ids) {
    if (id < 0 || id >= kMaxNodes) return false;
    mask[id / kBits] |= 1ul << id % kBits;
  }
  const auto begin = (reinterpret_cast<uintptr_t>(address) + kPage - 1) / kPage * kPage;
  const auto end = (reinterpret_cast<uintptr_t>(address) + n_bytes) / kPage * kPage;
  if (end <= begin) return true;
  return syscall(SYS_mbind, begin, end - begin, policy, mask, static_cast<unsigned long>(kMaxNodes) + 1,
                 0u) == 0;
}

}  // namespace

const std::vector<int>& process_cpus() {
  static const std::vector<int> cpus = [] {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) CPU_SET(0, &allowed);
    std::vector<int> list;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &allowed)) list.push_back(cpu);
    }
    return list;
  }();
  return cpus;
}

std::vector<NumaNode> numa_nodes(const std::string& folder) {
  const std::vector<int>& allowed = process_cpus();
  std::vector<NumaNode> nodes;
  for (const int id : read_list(folder + "/online")) {
    NumaNode node{id, read_list(folder + "/node" + std::to_string(id) + "/cpulist")};
    std::erase_if(node.cpus, [&](int cpu) { return !std::ranges::binary_search(allowed, cpu); });
    if (!node.cpus.empty()) nodes.push_back(std::move(node));
  }
  if (nodes.empty()) nodes.push_back({0, allowed});
  return nodes;
}

size_t current_numa_node(const std::vector<NumaNode>& nodes) {
  const int cpu = sched_getcpu();
  const auto found = std::ranges::find_if(
      nodes, [&](const NumaNode& node) { return std::ranges::find(node.cpus, cpu) != node.cpus.end(); });
  return found == nodes.end() ? 0 : static_cast<size_t>(found - nodes.begin());
}

bool bind_thread(const std::vector<int>& cpus) {
  process_cpus();  // as they are before
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : cpus) CPU_SET(cpu, &set);
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

bool move_thread_off(std::span<const int> cpus) {
  cpu_set_t before;
  if (sched_getaffinity(0, sizeof before, &before) != 0) return false;
  cpu_set_t others = before;
  for (const int cpu : cpus) {
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_CLR(cpu, &others);
  }
  if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof others, &others) != 0) return false;
  return sched_setaffinity(0, sizeof before, &before) == 0;
}

NodeShares::NodeShares(std::vector<NumaNode> nodes) : nodes_(std::move(nodes)), first_cpu_{0} {
  for (const NumaNode& node : nodes_)
    first_cpu_.push_back(first_cpu_.back() + static_cast<int64_t>(node.cpus.size()));
  TANDEM_CHECK(nodes_.empty() || first_cpu_.back() > 0);
}

int64_t NodeShares::begin(size_t i, int64_t n) const {
  if (i == 0 || i >= size()) return i == 0 ? 0 : n;
  // Rounded to the nearest; the product does not overflow for any number of rows.
  return (n * first_cpu_[i] + first_cpu_.back() / 2) / first_cpu_.back();
}

size_t NodeShares::node_of(int64_t item, int64_t n) const {
  size_t i = 0;
  while (i + 1 < size() && item >= begin(i + 1, n)) ++i;
  return i;
}

bool place_on_node(void* address, size_t n_bytes, int node_id) {
  return set_policy(address, n_bytes, MPOL_PREFERRED, {node_id});
}

bool interleave(void* address, size_t n_bytes, const NodeShares& shares) {
  if (shares.size() < 2) return true;
  std::vector<int> ids;
  for (size_t i = 0; i < shares.size(); ++i) ids.push_back(shares.node(i).id);
  return set_policy(address, n_bytes, MPOL_INTERLEAVE, ids);
}

}  // namespace tandem
