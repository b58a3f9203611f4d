// The CPU as a device. Its addresses are host addresses, and it reads weights directly from the mapped file.
// Runs are synchronous: when run() returns, the work is done. One thread pool serves all executables.
#pragma once

#include <memory>
#include <vector>

#include "base/numa.h"
#include "cpu/isa.h"
#include "cpu/linear_kernels.h"
#include "cpu/observer.h"
#include "device/device.h"

namespace tandem::cpu {

// Where the threads run on a machine with several memory nodes: where the system puts them; on all nodes, each with its share
// of the rows of weights (NodeShares of numa_nodes()), which a copy in memory has there; on the node where the program
// started.
enum class NumaPolicy { anywhere, distribute, isolate };

struct CpuOptions {
  int n_threads = 0;        // for steps of one token; 0: physical cores
  int n_threads_batch = 0;  // for longer steps; 0: same as n_threads
  Isa isa = best_isa();
  NumaPolicy numa = NumaPolicy::anywhere;
  std::vector<NumaNode> nodes = {};  // empty: those of the machine
  ProductObserver observer;          // may be empty
  CacheReadObserver cache_observer = {};  // may be empty
  const LinearKernels* products = nullptr;  // null: those of `isa`
};

std::unique_ptr<Device> make_cpu_device(const CpuOptions& options = {});

}  // namespace tandem::cpu
