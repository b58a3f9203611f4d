#include "sample/json_schema/common.h"

#include <algorithm>

namespace tandem::schema {
namespace {

struct JsonRule {
  std::string_view name, body;
  std::vector<std::string_view> uses;
};

// Surrogate escapes come only in pairs; a pair is one character.
const std::vector<JsonRule>& json_rules() {
  static const std::vector<JsonRule> rules = {
      {"ws", R"(( | " " | "\n" [ \t]{0,20} ))", {}},
      {"hex", R"([0-9a-fA-F])", {}},
      {"char",
       R"([^"\\\x00-\x1f] | "\\" ( ["\\/bfnrt] | "u" ( [0-9a-cA-Ce-fE-F] hex hex hex | [dD] [0-7] hex hex | )"
       R"([dD] [89abAB] hex hex "\\u" [dD] [c-fC-F] hex hex ) ))",
       {"hex"}},
      {"string", R"("\"" char* "\"")", {"char"}},
      {"integer", R"("-"? ( "0" | [1-9] [0-9]{0,15} ))", {}},
      {"number", R"(integer ( "." [0-9]{1,16} )? ( [eE] [-+]? [0-9]{1,2} )?)", {"integer"}},
      {"boolean", R"("true" | "false")", {}},
      {"null", R"("null")", {}},
      {"value",
       "object | array | string | number | boolean | null",
       {"object", "array", "string", "number", "boolean", "null"}},
      {"object",
       R"("{" ws ( string ":" ws value ( ws "," ws string ":" ws value )* ws )? "}")",
       {"ws", "string", "value"}},
      {"array", R"("[" ws ( value ( ws "," ws value )* ws )? "]")", {"ws", "value"}},
  };
  return rules;
}

const JsonRule* find_rule(std::string_view name) {
  for (const JsonRule& rule : json_rules()) {
    if (rule.name == name) return &rule;
  }
  return nullptr;
}

std::string class_char(uint32_t c) {
  const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == ' ';
  return plain         ? std::string(1, static_cast<char>(c))
         : c <= 0xffff ? format("\\u{:04x}", c)
                       : format("\\U{:08x}", c);
}

}  // namespace

std::string literal(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += format("\\x{:02x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string char_class(const std::vector<CodeRange>& ranges) {
  std::string out = "[";
  for (const CodeRange& r : ranges) {
    out += class_char(r.low);
    if (r.high > r.low) out += "-" + class_char(r.high);
  }
  return out + "]";
}

std::string times(uint64_t min, uint64_t max) {
  if (min == 1 && max == 1) return "";
  if (min == max) return format("{{{}}}", min);
  if (max == kNoLimit) {
    return min == 0 ? "*" : min == 1 ? "+" : format("{{{},}}", min);
  }
  return format("{{{},{}}}", min, max);
}

std::string choice(const std::vector<std::string>& alternatives) {
  if (alternatives.size() == 1) return alternatives[0];
  std::string out = "( ";
  for (size_t i = 0; i < alternatives.size(); ++i) out += (i > 0 ? " | " : "") + alternatives[i];
  return out + " )";
}

std::vector<CodeRange> plain_characters() {
  return complement(normalized({{0, 0x1f}, {'"', '"'}, {'\\', '\\'}}));
}

std::string_view json_rule(std::string_view name) {
  const JsonRule* rule = find_rule(name);
  return rule ? rule->body : std::string_view();
}

std::vector<std::string_view> json_rules_needed(std::string_view name) {
  std::vector<std::string_view> needed = {find_rule(name)->name};  // ours, which stay
  for (size_t i = 0; i < needed.size(); ++i) {
    for (const std::string_view used : find_rule(needed[i])->uses) {
      if (std::find(needed.begin(), needed.end(), used) == needed.end()) needed.push_back(used);
    }
  }
  return needed;
}

}  // namespace tandem::schema
