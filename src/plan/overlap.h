// Whether prompts go through layers that are divided over devices in halves (exec/halves.h), so that sums over links and
// computing overlap, and from how many tokens of a step on: where a step is predicted to be faster so. Weights are then read
// twice, which costs more than it brings where tokens are few or links fast.
//
// Pure functions; any thread.
#pragma once

#include "plan/fit.h"

namespace tandem {

// Returns the smallest step that is faster in halves; 0 if none is, or speeds are not known.
int64_t halves_from(const FitRequest& request, const Placement& placement);

// Lets a fit go in halves where that is faster and the memory is there.
void choose_halves(const FitRequest& request, Fit& fit);

// "prompts: steps of 288 tokens or more in two halves, ..." as a line; empty if none are.
std::string halves_text(const FitRequest& request, const Fit& fit);

}  // namespace tandem
