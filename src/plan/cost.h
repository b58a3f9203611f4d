// The cost model: how long a step takes under a placement, before anything runs. It clocks the same commands
// that the executor carries out. A segment takes the time of its nodes, a copy that of its bytes on the bus,
// and the commands say who waits for whom. Host memory feeds the CPU and the buses: while the host computes,
// it gets what the buses leave.
//
// Pure functions; any thread.
#pragma once

#include <span>

#include "exec/schedule.h"
#include "plan/node_work.h"

namespace tandem {

// Seconds of one step among others of its kind: what the step before brought to the slots is there.
struct StepCost {
  double seconds = 0;
  double bus_seconds = 0;  // the longest that a bus is busy with streamed weights
};
StepCost step_cost(const Graph& graph, const Schedule& schedule, const DeviceModels& devices,
                   std::span<const DeviceRates> rates, const KvConfig& kv, const StepLoad& load);

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
