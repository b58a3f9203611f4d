// Plans a session: its graphs, and the best of its sizes and placements. Runtime builds what this returns
// and `tandem plan` prints it, so both have the same bytes.
#pragma once

#include "plan/fit.h"

namespace tandem {

// Replaces n_ctx 0 by the training context and limits the rest by it. Several sequences get at least a
// block of the cache each, and a micro-batch of more than one token each.
ContextOptions checked_shape(const Architecture& architecture, ContextOptions shape);

struct SessionGraphs {
  KvConfig kv;
  Graph decode;   // one token of each sequence
  Graph prefill;  // n_ubatch tokens

  std::vector<const Graph*> both() const { return {&decode, &prefill}; }
};
// Throws Error(usage) for an impossible cache.
SessionGraphs session_graphs(const Architecture& architecture, const ContextOptions& shape);

// Everything outlives the call.
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

// Returns the plans, fastest first. Throws as fit() does if nothing fits or options contradict each other.
std::vector<SessionPlan> plan_session(const PlanRequest& request);

// Returns the fit of one shape with one choice.
Fit fit_shape(const PlanRequest& request, const ContextOptions& shape, const OffloadChoice& choice);

// Memory as a line over the context: bytes = per_token * n_ctx + fixed, for the given choice, on the GPUs,
// or on the host without GPUs.
struct MemoryLine {
  double bytes_per_token = 0;
  double fixed_bytes = 0;
};
MemoryLine memory_line(const PlanRequest& request, const OffloadChoice& choice);
// Returns the largest context, in tokens, for which the choice is within the budgets; 0 if there is none.
int64_t largest_context(const PlanRequest& request, const OffloadChoice& choice);

}  // namespace tandem
