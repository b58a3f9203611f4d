// The cost model: how long a step takes under a placement, before anything runs. A node takes the time that
// its bytes need at the device's reading speed or its operations at its arithmetic speed, whichever is
// longer; a segment adds a latency, a transfer its bytes over the bus; and a streamed layer cannot begin
// before its weights have come, over the bus, from disk, or both. Who waits for whom is followed through the
// schedule that the executor keeps to. Host memory feeds the CPU and the buses alike: what buses take while
// the host computes it cannot have.
//
// Pure functions; any thread.
#pragma once

#include <span>

#include "device/rates.h"
#include "exec/weight_stream.h"
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
  int64_t recent_from = 0;  // of caches in two parts: the position that the recent one begins with
};

// What a node reads from memory and computes.
struct NodeWork {
  double n_bytes = 0;
  double n_ops = 0;
  double DeviceRates::*pace = &DeviceRates::ops_per_s;  // of the operations

  // Of the operations; and of all when reading takes so long.
  double compute_seconds(const DeviceRates& rates) const;
  double seconds(const DeviceRates& rates, double read_seconds) const;
};
NodeWork node_work(const Graph& graph, const Node& node, const StepLoad& load, const KvConfig& kv);
double node_seconds(const NodeWork& work, const DeviceRates& rates);

// Seconds of one step among others of its kind: what the step before brought to the slots is there.
struct StepCost {
  double seconds = 0;
  double bus_seconds = 0;  // the longest that a bus is busy with streamed weights
};
StepCost step_cost(const Graph& graph, const Partition& partition, const Placement& placement,
                   const DeviceModels& devices, std::span<const DeviceRates> rates, const KvConfig& kv,
                   const StepLoad& load);

inline constexpr int64_t kUsualPrompt = 512, kUsualAnswer = 128;  // tokens

// Tokens per second of a usual prompt, or of one that fills the micro-batch where that is longer, and of
// decoding with the context half full.
struct Prediction {
  double prefill_tokens_per_s = 0;
  double decode_tokens_per_s = 0;

  // Of a usual prompt and answer, by which placements are compared.
  double work_seconds() const;
};

}  // namespace tandem
