// How a generation ended and how fast it was, for people.
#pragma once

#include "engine/generate.h"

namespace tandem::tools {

const char* reason_text(StopReason reason);
// 0 where no time was taken.
double tokens_per_second(int64_t n_tokens, double seconds);

}  // namespace tandem::tools
