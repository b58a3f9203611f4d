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

#include "exec/weight_stream.h"
#include "plan/node_work.h"

namespace tandem {

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
