// Temperature, fixed or dynamic.
#pragma once

#include "sample/candidates.h"

namespace tandem {

// Divides the logits by temp > 0.
void temperature(Candidates& candidates, float temp);

// Uses a temperature between temp - range (at least 0) and temp + range that grows with the entropy: entropy
// relative to the largest possible one, to the power of `exponent`. At 0 only the likeliest candidate
// remains.
void dynamic_temperature(Candidates& candidates, float temp, float range, float exponent);

}  // namespace tandem
