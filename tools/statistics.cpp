#include "tools/statistics.h"

#include "base/error.h"

namespace tandem::tools {

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

double tokens_per_second(int64_t n_tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(n_tokens) / seconds : 0;
}

}  // namespace tandem::tools
