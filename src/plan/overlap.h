// Whether prompts go through layers that are divided over devices in parts (exec/parts.h), so that sums over links and
// computing overlap, in how many, and from how many tokens of a step on: as is predicted to be fastest. Each part reads the
// weights, which costs more than it brings where tokens are few or links fast.
//
// Pure functions; any thread.
#pragma once

#include "plan/fit.h"

namespace tandem {

// Returns the number of parts that makes full steps fastest, and the smallest step that is faster so than in one piece; none
// if no step is, or speeds are not known.
PrefillParts best_parts(const FitRequest& request, const Placement& placement);

// Lets a fit go in parts where that is faster and the memory is there.
void choose_parts(const FitRequest& request, Fit& fit);

// "prompts: steps of 288 tokens or more in 3 parts, ..." as a line; empty if none are.
std::string parts_text(const FitRequest& request, const Fit& fit);

}  // namespace tandem
