// The context that memory holds. An automatic context is the largest, up to the training context, for which the
// weights stay where a small context leaves them: a longer one is not worth weights on disk, or off a GPU.
#pragma once

#include "plan/session_plan.h"

namespace tandem {

// Returns the largest context, in tokens of whole cache blocks, for which the choice is within the memory of the
// devices; at most `most`, 0 if there is none. Weights that the host maps count, unless they are too large for its
// memory without any context.
int64_t largest_context(const PlanRequest& request, const OffloadChoice& choice, int64_t most);

// Returns the largest context, at most the one asked for, that any placement with these options has memory for;
// 0 if there is none.
int64_t largest_possible_context(const PlanRequest& request);

// Plans the session with an automatic context. Throws as plan_fixed_context() does for the smallest one.
std::vector<SessionPlan> plan_automatic_context(const PlanRequest& request);

}  // namespace tandem
