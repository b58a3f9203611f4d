// How a generation ended and how fast it was, for people.
#pragma once

#include <string>
#include <string_view>

#include "engine/generate.h"

namespace tandem::tools {

// "1 token", "8 tokens".
std::string n_tokens_text(int64_t n);
const char* reason_text(StopReason reason);
// The same as one word, for programs: eos, limit, context, stop or interrupted.
const char* stop_name(StopReason reason);
// "1 token", "2 tokens".
std::string counted(int64_t n, std::string_view noun);
// 0 where no time was taken.
double tokens_per_second(int64_t n_tokens, double seconds);
// "8 tokens, 31.4 t/s" of an answer. Its first token comes with the prompt, so one token has no speed.
std::string answer_speed_text(int64_t n_tokens, double seconds);

}  // namespace tandem::tools
