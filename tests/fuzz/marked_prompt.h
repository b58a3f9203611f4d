// Shared by the targets that render chat templates: small limits, and what holds for every prompt.
#pragma once

#include "base/error.h"
#include "text/chat_template.h"

namespace tandem::fuzz {

inline constexpr TemplateLimits kLimits{
    .n_operations = 200'000, .n_bytes = 64 << 20, .n_output_bytes = 1 << 20, .n_depth = 300};

inline void check_spans(const MarkedPrompt& prompt) {
  size_t end = 0;
  for (const TextSpan& span : prompt.user) {
    TANDEM_CHECK(span.begin >= end && span.begin < span.end && span.end <= prompt.text.size());
    end = span.end;
  }
}

}  // namespace tandem::fuzz
