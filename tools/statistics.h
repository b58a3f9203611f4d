// How a generation ended and how fast it was, for people.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

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
// "81% of 10240 in memory, 1.90 GiB read (52.0 MiB a token), 312 of 355 read ahead were used": of experts on disk, by steps
// that computed this many tokens; what a token takes is left out for 0. Then, or alone, of experts that GPUs keep beside
// the host: "62% of 10240 on GPUs, 1200 more brought in time, 3.10 GiB brought". "" if none were used.
std::string experts_used_text(const ExpertCounts& counts, int64_t n_tokens);
// The same for a generation: "experts: prompt 20% of ...; answer 81% of ..."; "" if there are none.
std::string experts_used_text(const GenerateStats& stats);
// The same for programs: {"prompt": {"n_used", "n_found", "n_read", "read_bytes", "n_ahead", "n_ahead_used", "on_gpus":
// {"n_used", "n_found", "n_fetched", "n_kept", "fetched_bytes"}}, "answer": the same}; null if no experts are on disk or
// kept on GPUs.
nlohmann::ordered_json experts_used_json(const GenerateStats& stats);

}  // namespace tandem::tools
