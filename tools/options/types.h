// Values of options, so that every number is checked, and refused, in the same words.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tools/options/command_line.h"
#include "tools/options/options.h"
#include "tools/options/suggest.h"

namespace tandem::tools {

// Values; all throw Error(usage) that starts with the option's name.
int64_t parse_integer(const std::string& option, const std::string& text, int64_t min,
                      int64_t max = INT32_MAX);
// "inf" and "-inf" are numbers, "nan" is not.
double parse_real(const std::string& option, const std::string& text, double min);
// The parts between commas; "\," is a comma that does not cut.
std::vector<std::string> split_list(const std::string& text);
// All of a file. Throws Error(io), and Error(bad_file) for one of more than `max_bytes`.
std::string read_text_file(const std::string& path, size_t max_bytes = SIZE_MAX);
// on, off, auto and their usual other spellings (1, true, enabled, ...).
Toggle parse_toggle(const std::string& option, const std::string& text);

// Refuses a value: "--color: 'yes' is none of on, off, auto".
[[noreturn]] void throw_none_of(const std::string& option, const std::string& text,
                                const std::vector<std::string>& known);

template <class Enum>
Enum one_of(const std::string& option, const std::string& text,
            std::initializer_list<std::pair<const char*, Enum>> choices) {
  std::vector<std::string> known;
  for (const auto& [name, value] : choices) {
    if (text == name) return value;
    known.emplace_back(name);
  }
  throw_none_of(option, text, known);
}

}  // namespace tandem::tools
