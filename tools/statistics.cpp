#include "tools/statistics.h"

#include "base/error.h"
#include "plan/footprint.h"

namespace tandem::tools {
namespace {

nlohmann::ordered_json counts_json(const ExpertCounts& c) {
  const ExpertCacheCounts& gpu = c.on_gpus;
  return {{"n_used", c.n_used},
          {"n_found", c.n_found},
          {"n_read", c.n_read},
          {"read_bytes", c.read_bytes},
          {"n_ahead", c.n_ahead},
          {"n_ahead_used", c.n_ahead_used},
          {"on_gpus",
           {{"n_used", gpu.n_used},
            {"n_found", gpu.n_found},
            {"n_fetched", gpu.n_fetched},
            {"n_kept", gpu.n_kept},
            {"fetched_bytes", gpu.fetched_bytes}}}};
}

// "62% of 10240 on GPUs, 1200 more brought in time, 3.10 GiB brought"; "" if none are kept there.
std::string kept_experts_text(const ExpertCacheCounts& c) {
  if (c.n_used == 0) return "";
  const double share = 100 * static_cast<double>(c.n_found) / static_cast<double>(c.n_used);
  std::string text = format("{:.0f}% of {} on GPUs", share, c.n_used);
  if (c.n_fetched > 0) text += format(", {} more brought in time", c.n_fetched);
  if (c.fetched_bytes > 0) text += format(", {} brought", size_text(c.fetched_bytes));
  return text;
}

}  // namespace

std::string n_tokens_text(int64_t n) {
  return counted(n, "token");
}

const char* reason_text(StopReason reason) {
  switch (reason) {
    case StopReason::end_of_generation: return "end of text";
    case StopReason::limit: return "limit of -n reached";
    case StopReason::context_full: return "the context is full (increase -c, or use --context-shift)";
    case StopReason::stop_text: return "reverse prompt reached";
    case StopReason::interrupted: return "interrupted";
  }
  return "";
}

const char* stop_name(StopReason reason) {
  switch (reason) {
    case StopReason::end_of_generation: return "eos";
    case StopReason::limit: return "limit";
    case StopReason::context_full: return "context";
    case StopReason::stop_text: return "stop";
    case StopReason::interrupted: return "interrupted";
  }
  return "";
}

std::string counted(int64_t n, std::string_view noun) {
  return format("{} {}{}", n, noun, n == 1 ? "" : "s");
}

std::string answer_speed_text(int64_t n_tokens, double seconds) {
  const std::string n = n_tokens_text(n_tokens);
  return n_tokens < 2 ? n : n + format(", {:.1f} t/s", tokens_per_second(n_tokens - 1, seconds));
}

std::string experts_used_text(const ExpertCounts& counts, int64_t n_tokens) {
  const std::string kept = kept_experts_text(counts.on_gpus);
  if (counts.n_used == 0) return kept;
  const double share = 100 * static_cast<double>(counts.n_found) / static_cast<double>(counts.n_used);
  std::string text =
      format("{:.0f}% of {} in memory, {} read", share, counts.n_used, size_text(counts.read_bytes));
  if (n_tokens > 0 && counts.read_bytes > 0)
    text += format(" ({} a token)", size_text(counts.read_bytes / static_cast<uint64_t>(n_tokens)));
  if (counts.n_ahead > 0)
    text += format(", {} of {} read ahead were used", counts.n_ahead_used, counts.n_ahead);
  if (!kept.empty()) text += ", " + kept;
  return text;
}

std::string experts_used_text(const GenerateStats& stats) {
  const std::string prompt = experts_used_text(stats.prompt_experts, 0);
  const std::string answer = experts_used_text(stats.answer_experts, stats.n_generated - 1);
  if (prompt.empty() && answer.empty()) return "";
  return "experts: " + (prompt.empty() ? "" : "prompt " + prompt) +
         (prompt.empty() || answer.empty() ? "" : "; ") + (answer.empty() ? "" : "answer " + answer);
}

nlohmann::ordered_json experts_used_json(const GenerateStats& stats) {
  if (experts_used_text(stats).empty()) return nullptr;
  return {{"prompt", counts_json(stats.prompt_experts)}, {"answer", counts_json(stats.answer_experts)}};
}

double tokens_per_second(int64_t n_tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(n_tokens) / seconds : 0;
}

}  // namespace tandem::tools
