// Temperature, fixed or moving with the entropy.
#pragma once

#include "sample/candidates.h"

namespace tandem {

// Divides the logits by temp > 0.
void temperature(Candidates& candidates, float temp);

// Between temp - range (at least 0) and temp + range, depending on how even the distribution is: its entropy
// as a share of the largest possible one, to the power of `exponent`. At 0 the likeliest candidate remains.
void dynamic_temperature(Candidates& candidates, float temp, float range, float exponent);

}  // namespace tandem
