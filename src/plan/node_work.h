// The work of a graph's nodes in a step, bytes to read and operations, and the time that a device of given
// rates needs for it: for the bytes at its reading speed or for the operations at its arithmetic speed,
// whichever is longer.
//
// Pure functions; any thread.
#pragma once

#include "device/rates.h"
#include "exec/expert_use.h"
#include "graph/graph.h"
#include "kv/cache.h"

namespace tandem {

// Where nobody knows: as most NVMe drives do.
inline constexpr double kUsualDiskBytesPerS = 3e9;

// The step whose time is asked for.
struct StepLoad {
  int64_t n_tokens = 1;
  int64_t n_outputs = 1;
  int64_t n_past = 0;       // tokens of a sequence in the cache before the step
  int64_t n_sequences = 1;  // that share the tokens equally
  int64_t hot_from = 0;     // of split caches: the position that the hot one begins with
  // How experts are used, as recorded. Null: not known.
  const ExpertUse* expert_use = nullptr;
};

// The bytes that a node reads from memory and its operations.
struct NodeWork {
  double n_bytes = 0;
  double n_ops = 0;
  double DeviceRates::*pace = &DeviceRates::ops_per_s;  // of the operations

  // Of the operations; and of all when reading takes so long.
  double compute_seconds(const DeviceRates& rates) const;
  double seconds(const DeviceRates& rates, double read_seconds) const;
};
double tensor_bytes(const Tensor& tensor, const StepLoad& load);  // that are in use
// On the host, attention reads an indexed cache sparsely.
NodeWork node_work(const Graph& graph, const Node& node, const StepLoad& load, const KvConfig& kv,
                   DeviceId device = DeviceId::host());
// Of a mixture's experts, some: what n_experts of them are to read, and a share of the operations.
NodeWork part_of_experts(const Graph& graph, const MoeFfnOp& op, const NodeWork& all, double n_experts,
                         double share);
double node_seconds(const NodeWork& work, const DeviceRates& rates);

}  // namespace tandem
