#include "tools/statistics.h"

#include "base/error.h"
#include "plan/footprint.h"

namespace tandem::tools {
namespace {

nlohmann::ordered_json counts_json(const ExpertCounts& c) {
  return {{"n_used", c.n_used},         {"n_found", c.n_found}, {"n_read", c.n_read},
          {"read_bytes", c.read_bytes}, {"n_ahead", c.n_ahead}, {"n_ahead_used", c.n_ahead_used}};
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
  if (counts.n_used == 0) return "";
  const double share = 100 * static_cast<double>(counts.n_found) / static_cast<double>(counts.n_used);
  std::string text =
      format("{:.0f}% of {} in memory, {} read", share, counts.n_used, size_text(counts.read_bytes));
  if (n_tokens > 0 && counts.read_bytes > 0)
    text += format(" ({} a token)", size_text(counts.read_bytes / static_cast<uint64_t>(n_tokens)));
  if (counts.n_ahead > 0)
    text += format(", {} of {} read ahead were used", counts.n_ahead_used, counts.n_ahead);
  return text;
}

std::string experts_used_text(const GenerateStats& stats) {
  const std::string prompt = experts_used_text(stats.prompt_experts, 0);
  if (prompt.empty()) return "";
  const std::string answer = experts_used_text(stats.answer_experts, stats.n_generated - 1);
  return "experts: prompt " + prompt + (answer.empty() ? "" : "; answer " + answer);
}

nlohmann::ordered_json experts_used_json(const GenerateStats& stats) {
  if (stats.prompt_experts.n_used == 0) return nullptr;
  return {{"prompt", counts_json(stats.prompt_experts)}, {"answer", counts_json(stats.answer_experts)}};
}

double tokens_per_second(int64_t n_tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(n_tokens) / seconds : 0;
}

}  // namespace tandem::tools
