// Regular expressions that a user writes, in PCRE2's syntax, with limits: no pattern crashes the program or runs
// for long. Immutable; copies share the compiled pattern; any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace tandem {

class Regex {
 public:
  // Throws Error(usage) for a pattern that is not a regular expression, is longer than 10,000 bytes or is nested
  // too deeply; `source` starts the message.
  Regex(std::string_view pattern, std::string source);

  // Whether some part of the text matches. Throws Error(usage) if that takes too many steps.
  bool found_in(std::string_view text) const;

 private:
  std::string pattern_, source_;
  std::shared_ptr<const void> code_;
};

}  // namespace tandem
