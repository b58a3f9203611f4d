#include "tools/incomplete.h"

#include "base/log.h"
#include "tools/command.h"

namespace tandem::tools {
namespace {

constexpr int kIncomplete = 7;  // the exit code

}  // namespace

void check_complete(const SamplerParams& params, StopReason reason,
                    const std::function<void(const std::string&)>& note) {
  const bool cut = reason == StopReason::limit || reason == StopReason::context_full;
  if (!params.grammar || !cut) return;
  const char* why =
      reason == StopReason::limit ? "-n tokens were not enough" : "the context is full; increase -c";
  const std::string text = format("the constrained output is incomplete: {}", why);
  log_warning("{}", text);
  if (note) note(text);
  throw ExitCode{kIncomplete};
}

}  // namespace tandem::tools
