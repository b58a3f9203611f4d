#include "tools/prompt_progress.h"

#include <cstdio>
#include <string>

#include "base/error.h"
#include "base/interrupt.h"

namespace tandem::tools {
namespace {

constexpr int64_t kLongPrompt = 32;  // tokens
// Written by the signal handler over the bar, and erased like it.
constexpr const char* kStopping = "\r\033[Kstopping after this micro-batch";

// "[######    ] 60%"
std::string bar(int64_t n_done, int64_t n) {
  constexpr int64_t kWidth = 24;
  const auto full = static_cast<size_t>(n_done * kWidth / n);
  return "[" + std::string(full, '#') + std::string(static_cast<size_t>(kWidth) - full, ' ') + "] " +
         std::to_string(n_done * 100 / n) + "%";
}

}  // namespace

bool PromptProgress::shows(int64_t n_prompt) const {
  return animate_ && line_.shown() && n_prompt >= kLongPrompt;
}

void PromptProgress::update(int64_t n_done, int64_t n_prompt) {
  if (n_done >= n_prompt || interrupted()) return clear();
  if (!shows(n_prompt)) return;
  set_interrupt_notice(kStopping);
  line_.show(format("reading the prompt {} of {} tokens", bar(n_done, n_prompt), n_prompt));
  if (interrupted()) fputs(kStopping, stderr);  // the bar may have replaced what the handler wrote
}

void PromptProgress::clear() {
  set_interrupt_notice(nullptr);
  line_.clear();
}

}  // namespace tandem::tools
