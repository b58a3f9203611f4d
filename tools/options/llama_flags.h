// Flags that people know from llama.cpp and that are no options here: some have nothing to do, the others get a
// sentence that says why, or what to use instead.
#pragma once

#include <string>
#include <string_view>

namespace tandem::tools {

enum class Takes {
  nothing,
  value,
  optional_value,  // one of on, off, auto, 0, 1, ..., if it follows
};

struct LlamaFlag {
  std::string_view commands;  // that this row is for, separated by blanks; empty: all that run a model
  std::string_view names;     // separated by blanks
  Takes takes;
  std::string_view answer;  // empty: accepted without effect
};

// The row for a flag as it was written ("-cnv", "--lora"), for a command; null if there is none.
const LlamaFlag* find_llama_flag(std::string_view command, std::string_view flag);

// The long option that an LLAMA_ARG_* variable sets, where its name does not follow from the option's; "" if
// there is none.
std::string_view llama_variable(std::string_view long_name);

}  // namespace tandem::tools
