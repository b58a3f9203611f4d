// What a session will be: its graphs, and the best of its sizes and placements. Session builds what this
// chooses, and `tandem plan` prints it, so both speak of the same bytes.
#pragma once

#include "plan/fit.h"

namespace tandem {

// What decides how much memory a session takes, beside its placement.
struct SessionShape {
  int64_t n_ctx = 0;  // of all sequences together
  int64_t n_ubatch = 512;
  DType k_dtype = DType::F16, v_dtype = DType::F16;
  bool all_logits = false;     // logits of every token are kept room for
  int64_t n_sequences = 1;     // in one step
  int64_t n_ctx_sequence = 0;  // of one sequence; 0: n_ctx
};

// n_ctx 0 becomes what the model was trained with, and the rest is held to it; several sequences have a block
// of the cache each, and a micro-batch that has room for more than one token of each.
SessionShape checked_shape(const Architecture& architecture, SessionShape shape);

struct SessionGraphs {
  KvConfig kv;
  Graph decode;   // one token of each sequence
  Graph prefill;  // n_ubatch tokens

  std::vector<const Graph*> both() const { return {&decode, &prefill}; }
};
// Throws Error(usage) for a cache that cannot be.
SessionGraphs session_graphs(const Architecture& architecture, const SessionShape& shape);

// All outlive the call.
struct PlanRequest {
  const Architecture& architecture;
  const std::deque<Weight>& weights;
  DeviceModels devices;
  const OffloadFlags& flags;
  SessionShape shape;
  bool ubatch_is_free = false;    // smaller micro-batches may be chosen too
  bool kv_dtype_is_free = false;  // so may a quantized cache, which is not lossless
  std::span<const DeviceRates> rates = {};
};

struct SessionPlan {
  SessionShape shape;
  Fit fit;
};

// Fastest first. Throws what fit() does when nothing fits, or flags contradict each other.
std::vector<SessionPlan> plan_session(const PlanRequest& request);

// The fit of one shape with one choice.
Fit fit_shape(const PlanRequest& request, const SessionShape& shape, const OffloadChoice& choice);

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
