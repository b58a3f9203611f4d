// Plans a session: its graphs, and the best of its sizes and placements. Runtime builds what this returns
// and `tandem plan` prints it, so both have the same bytes.
#pragma once

#include "plan/fit.h"

namespace tandem {

// Replaces n_ctx 0 by the training context, or by the upper bound of an automatic one, and limits the rest by
// it. A micro-batch of 0 becomes 512 tokens. Several sequences get at least a block of the cache each, and a
// micro-batch of more than one token each.
ContextOptions checked_shape(const Architecture& architecture, ContextOptions shape);

// The micro-batch where none is set: 512 tokens, without a GPU for a mixture up to 8192, so that each expert gets 128 rows.
// With one, the plan widens it where the host computes experts.
int64_t automatic_ubatch(const Architecture& architecture, size_t n_devices);

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

// The tokens that the model was trained with, for each sequence.
int64_t trained_context(const PlanRequest& request);

struct SessionPlan {
  ContextOptions shape;
  Fit fit;
  // What limits an automatic context below its upper bound: "7.50 GiB of free memory", "24.00 GiB on GPU0".
  // Otherwise empty, and if weights are moved for the context.
  std::string context_limit = {};
};

// Returns the plans, fastest first; all have the same context. Throws as fit() does if nothing fits or options
// contradict each other; if less context would help, the message has the largest that fits.
std::vector<SessionPlan> plan_session(const PlanRequest& request);
// The same for a context that is set. Throws without looking for a smaller one.
std::vector<SessionPlan> plan_fixed_context(const PlanRequest& request);

// The shapes of this context that may be chosen, the one asked for first.
std::vector<ContextOptions> open_shapes(const PlanRequest& request);
// For a part of the plan: the request for one shape. Everything outlives the result.
FitRequest fit_request(const PlanRequest& request, const SessionGraphs& graphs,
                       const std::vector<const Graph*>& both);

// Returns the fit of one shape with one choice.
Fit fit_shape(const PlanRequest& request, const ContextOptions& shape, const OffloadChoice& choice);

// Memory as a line over the context: bytes = per_token * n_ctx + fixed, for the given choice, on the GPUs,
// or on the host without GPUs.
struct MemoryLine {
  double bytes_per_token = 0;
  double fixed_bytes = 0;
};
MemoryLine memory_line(const PlanRequest& request, const OffloadChoice& choice);

}  // namespace tandem
