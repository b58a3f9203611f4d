// Shared by the files of json_schema: the JSON type, errors, and GBNF text. Internal.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sample/grammar/chars.h"
#include "sample/grammar/syntax.h"

namespace tandem::schema {

using Json = nlohmann::ordered_json;  // keeps the order of properties

// A place in a document; errors start with it.
struct Place {
  const GrammarSource* source;
  std::string path = "#";

  Place below(std::string_view key) const { return {source, path + "/" + std::string(key)}; }
  Place below(size_t index) const { return below(std::to_string(index)); }
  [[noreturn]] void fail(const std::string& message) const {
    throw_error(source->code, "{}: {}: {}", source->name, printable(path, 200), message);
  }
};

// ---- GBNF text ----

std::string literal(std::string_view text);                    // "text", escaped
std::string char_class(const std::vector<CodeRange>& ranges);  // [...], normalized ranges
// "{min,max}" for what precedes it; "" for exactly once.
std::string times(uint64_t min, uint64_t max);
// "( a | b )"; a single alternative as it is.
std::string choice(const std::vector<std::string>& alternatives);

// The characters that a JSON string contains unescaped.
std::vector<CodeRange> plain_characters();

// Returns the text of a predefined rule of JSON, such as "string" or "value"; empty for other names.
std::string_view json_rule(std::string_view name);
// Returns the predefined rules that `name` uses, including itself.
std::vector<std::string_view> json_rules_needed(std::string_view name);

// ---- Values with a bound (numbers.cpp) ----

struct Bound {
  double value;
  bool exclusive = false;
};
// GBNF for the numbers between bounds; throw Error for an empty range and for bounds with too many digits.
std::string integer_between(const std::optional<Bound>& low, const std::optional<Bound>& high,
                            const Place& place);
std::string number_between(const std::optional<Bound>& low, const std::optional<Bound>& high,
                           const Place& place);

// ---- Strings (strings.cpp, pattern.cpp) ----

struct Lengths {
  uint64_t min = 0, max = kNoLimit;  // in characters
};
// A quoted JSON string in which the regular expression finds a match (ECMA-262, the subset that describes a
// regular language). Throws Error for unsupported syntax, and if matches may not keep to the lengths.
std::string string_matching(const std::string& pattern, const Lengths& lengths, const Place& place);
// A quoted JSON string of a format. Throws Error for an unknown format.
std::string string_of_format(const std::string& format_name, const Place& place);
// Rules for a quoted JSON string other than these names. The first rule is called `rule`.
struct NamedRule {
  std::string name, body;
};
std::vector<NamedRule> string_except(const std::vector<std::string>& names, const std::string& rule);

}  // namespace tandem::schema
