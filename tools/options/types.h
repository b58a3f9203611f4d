// Kinds of options, so that every number is checked, and refused, in the same words. Names are CLI11's
// ("-c,--ctx-size"); short forms of several letters come from the table in parse.cpp.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tools/options/options.h"
#include "tools/options/suggest.h"

namespace tandem::tools {

// The group of options that exist so that known command lines keep working; last on a help page.
inline constexpr const char* kNoEffectGroup = "Accepted, without effect";

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

// The types that a KV cache can have, as parse_cache_type reads them.
std::vector<std::string> cache_type_names();

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

// Options; `target` outlives the parse.
CLI::Option* text(CLI::App& app, const char* names, std::string& target, const char* type, const char* help);
CLI::Option* integer(CLI::App& app, const char* names, int32_t& target, int32_t min, const char* help);
CLI::Option* integer(CLI::App& app, const char* names, int64_t& target, int32_t min, const char* help);
CLI::Option* real(CLI::App& app, const char* names, float& target, const char* help);
// No default to show: unset, the model or another option decides.
CLI::Option* optional_real(CLI::App& app, const char* names, double min, const char* help,
                           std::function<void(float)> set);
// A word that `set` understands or refuses. `shown_default` is for the help page.
CLI::Option* choice(CLI::App& app, const char* names, const char* type, const char* help,
                    const char* shown_default, std::function<void(const std::string&)> set);
// The same with a value that can be left out: "-fa" is "-fa on".
CLI::Option* bare_choice(CLI::App& app, const char* names, const char* type, const char* bare_value,
                         const char* help, std::function<void(const std::string&)> set);
// May be given several times, with one value each; `set` gets all of them.
CLI::Option* repeated(CLI::App& app, const char* names, const char* type, const char* help,
                      std::function<void(const std::vector<std::string>&)> set);

}  // namespace tandem::tools
