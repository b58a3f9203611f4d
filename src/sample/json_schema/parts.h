// What the files of json_schema share: the JSON type, errors, and pieces of GBNF text. Internal.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sample/grammar/chars.h"
#include "sample/grammar/syntax.h"

namespace tandem::schema {

using Json = nlohmann::ordered_json;  // properties come in the order of the text

// Where in a document; errors start with it.
struct Place {
  const GrammarSource* source;
  std::string path = "#";

  Place below(std::string_view key) const { return {source, path + "/" + std::string(key)}; }
  Place below(size_t index) const { return below(std::to_string(index)); }
  [[noreturn]] void fail(const std::string& message) const {
    throw_error(source->code, "%s: %s: %s", source->name.c_str(), printable(path, 200).c_str(),
                message.c_str());
  }
};

// ---- Pieces of GBNF ----

std::string literal(std::string_view text);                    // "text", escaped
std::string char_class(const std::vector<CodeRange>& ranges);  // [...], normalized ranges
// {min,max} behind what it repeats; "" for exactly once.
std::string times(uint64_t min, uint64_t max);
// "(a | b)"; the only one as it is.
std::string choice(const std::vector<std::string>& alternatives);

// The characters that stand for themselves in a JSON string.
std::vector<CodeRange> plain_characters();

// A rule of JSON itself, "string" or "value": its text, and through it those that it uses. Empty for other
// names.
std::string_view json_rule(std::string_view name);
// The rules `name` uses, itself included.
std::vector<std::string_view> json_rules_needed(std::string_view name);

// ---- Values with a bound (numbers.cpp) ----

struct Bound {
  double value;
  bool exclusive = false;
};
// Expressions for the numbers between; throw Error for an empty range and for bounds with too many digits.
std::string integer_between(const std::optional<Bound>& low, const std::optional<Bound>& high,
                            const Place& place);
std::string number_between(const std::optional<Bound>& low, const std::optional<Bound>& high,
                           const Place& place);

// ---- Strings (strings.cpp, pattern.cpp) ----

struct Lengths {
  uint64_t min = 0, max = kNoLimit;  // in characters
};
// A JSON string with its quotes whose text the regular expression (of ECMA-262, the part of it that describes
// a regular language) finds a match in. Throws Error for what is not understood, and when it does not keep to
// the lengths.
std::string string_matching(const std::string& pattern, const Lengths& lengths, const Place& place);
// The same for a format. Throws Error for a format that is not known.
std::string string_of_format(const std::string& format_name, const Place& place);
// The rules of a JSON string, with its quotes, that is none of these names. The first rule is called `rule`.
struct NamedRule {
  std::string name, body;
};
std::vector<NamedRule> string_except(const std::vector<std::string>& names, const std::string& rule);

}  // namespace tandem::schema
