// What a session will be: its graphs, and the best of its sizes and placements. Session builds what this
// chooses, and `tandem plan` prints it, so both speak of the same bytes.
#pragma once

#include "plan/fit.h"

namespace tandem {

// n_ctx 0 becomes what the model was trained with, and the rest is held to it; several sequences have a block
// of the cache each, and a micro-batch that has room for more than one token of each.
ContextOptions checked_shape(const Architecture& architecture, ContextOptions shape);

struct SessionGraphs {
  KvConfig kv;
  Graph decode;   // one token of each sequence
  Graph prefill;  // n_ubatch tokens

  std::vector<const Graph*> both() const { return {&decode, &prefill}; }
};
// Throws Error(usage) for a cache that cannot be.
SessionGraphs session_graphs(const Architecture& architecture, const ContextOptions& shape);

// All outlive the call.
struct PlanRequest {
  const Architecture& architecture;
  const std::deque<Weight>& weights;
  DeviceModels devices;
  const OffloadOptions& options;
  ContextOptions shape;
  // If known, the plan may also use a smaller micro-batch or a quantized cache, unless the user set them.
  std::span<const DeviceRates> rates = {};
  bool may_leave_on_disk = true;  // false: all weights are in memory, read or locked
};

struct SessionPlan {
  ContextOptions shape;
  Fit fit;
};

// Fastest first. Throws what fit() does when nothing fits, or options contradict each other.
std::vector<SessionPlan> plan_session(const PlanRequest& request);

// The fit of one shape with one choice.
Fit fit_shape(const PlanRequest& request, const ContextOptions& shape, const OffloadChoice& choice);

// Memory as a line over the context: bytes = per_token * n_ctx + fixed, for the given choice, on the GPUs (or
// on the host, where there is none).
struct MemoryLine {
  double bytes_per_token = 0;
  double fixed_bytes = 0;
};
MemoryLine memory_line(const PlanRequest& request, const OffloadChoice& choice);
// The most tokens of context for which the choice is within the budgets; 0 when none.
int64_t largest_context(const PlanRequest& request, const OffloadChoice& choice);

}  // namespace tandem
