// The context that memory holds. An automatic context is the largest, up to the training context, that moves no
// weights to disk or off a GPU. Where even a small one would move them, it is 4096 tokens, or more if that moves no
// others.
#pragma once

#include "plan/session_plan.h"

namespace tandem {

// Returns the largest context, in tokens of whole cache blocks, for which the choice is within the memory of the
// devices; at most `most`, 0 if there is none. Weights that the host maps count, unless they are too large for its
// memory without any context.
int64_t largest_context(const PlanRequest& request, const OffloadChoice& choice, int64_t most);

// Returns the context to advise instead of one that does not fit: the largest, at most the training context, that
// fits with all weights in memory; with weights on disk if no other fits; 0 if none does.
int64_t largest_possible_context(const PlanRequest& request);

// Plans the session with an automatic context. Throws as plan_fixed_context() does for the smallest one.
std::vector<SessionPlan> plan_automatic_context(const PlanRequest& request);

}  // namespace tandem
