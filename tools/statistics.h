// How a generation ended and how fast it was, for people.
#pragma once

#include <string>

#include "engine/generate.h"

namespace tandem::tools {

// "1 token", "8 tokens".
std::string n_tokens_text(int64_t n);
const char* reason_text(StopReason reason);
// 0 where no time was taken.
double tokens_per_second(int64_t n_tokens, double seconds);

}  // namespace tandem::tools
