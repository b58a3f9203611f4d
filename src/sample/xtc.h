// XTC, "exclude top choices": now and then leaves out all clear choices but the least likely of them.
#pragma once

#include "sample/candidates.h"

namespace tandem {

// With `probability`, takes away all but the last of the candidates that have at least `threshold`
// probability, if there are two or more and `min_keep` remain. probability <= 0 or threshold > 0.5: never.
// Draws one random number.
void xtc(Candidates& candidates, float probability, float threshold, size_t min_keep, Rng& rng);

}  // namespace tandem
