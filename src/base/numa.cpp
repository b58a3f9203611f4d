#include "base/numa.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>

namespace tandem {
namespace {

// Parses a list like "0-3,8,10-11" from a file in /sys; empty when it cannot be read.
std::vector<int> read_cpu_list(const char* path) {
  std::vector<int> cpus;
  FILE* f = fopen(path, "r");
  if (!f) return cpus;
  int first = 0, last = 0;
  while (fscanf(f, "%d", &first) == 1) {
    last = first;
    int c = fgetc(f);
    if (c == '-' && fscanf(f, "%d", &last) == 1) c = fgetc(f);
    for (int cpu = first; cpu <= last && cpu < CPU_SETSIZE; ++cpu) cpus.push_back(cpu);
    if (c != ',') break;
  }
  fclose(f);
  return cpus;
}

}  // namespace

std::vector<std::vector<int>> numa_nodes() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return {{0}};
  std::vector<std::vector<int>> nodes;
  for (int node : read_cpu_list("/sys/devices/system/node/online")) {
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
    std::vector<int> cpus = read_cpu_list(path);
    std::erase_if(cpus, [&](int cpu) { return !CPU_ISSET(cpu, &allowed); });
    if (!cpus.empty()) nodes.push_back(std::move(cpus));
  }
  if (!nodes.empty()) return nodes;
  std::vector<int> all;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) all.push_back(cpu);
  }
  return {all};
}

int current_numa_node(const std::vector<std::vector<int>>& nodes) {
  const int cpu = sched_getcpu();
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (std::find(nodes[n].begin(), nodes[n].end(), cpu) != nodes[n].end()) return static_cast<int>(n);
  }
  return 0;
}

bool bind_thread(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : cpus) CPU_SET(cpu, &set);
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

}  // namespace tandem
