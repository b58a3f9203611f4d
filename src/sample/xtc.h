// XTC, "exclude top choices": sometimes removes all likely candidates but the least likely of them.
#pragma once

#include "sample/candidates.h"

namespace tandem {

// With probability `probability`, removes all but the last of the candidates with a probability of at least
// `threshold`, if there are two or more and `min_keep` candidates remain. probability <= 0 or threshold >
// 0.5: never. Draws one random number.
void xtc(Candidates& candidates, float probability, float threshold, size_t min_keep, Rng& rng);

}  // namespace tandem
