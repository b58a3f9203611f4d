// The syntax tree of a grammar: output of the parser, input of the compiler. Plain data; nodes refer to each
// other by index, so destroying deep nesting costs no stack.
//
// The notation is GBNF: rules `name ::= ...` of "literals", [classes], . (any character), names of rules,
// (groups), alternatives with |, repetitions * + ? {m} {m,} {m,n}, and comments from # to the end of the
// line. A rule ends with its line, except inside parentheses, after ::= and |, and before a line that starts
// with |.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "sample/grammar/chars.h"

namespace tandem {

// The source of a text and the kind of its errors: the path of a file or the name of an option.
struct GrammarSource {
  std::string name = "grammar";
  ErrorCode code = ErrorCode::bad_file;
};

struct GrammarPosition {
  uint32_t line = 1, column = 1;  // columns count characters
};

// Throws Error: "NAME:LINE:COLUMN: message".
[[noreturn]] void grammar_error(const GrammarSource& source, GrammarPosition at, const std::string& message);

inline constexpr uint32_t kNoLimit = std::numeric_limits<uint32_t>::max();

// Limits for hostile or mistaken input.
struct GrammarLimits {
  static constexpr size_t kTextBytes = size_t{4} << 20;
  static constexpr size_t kDepth = 256;            // nested groups and repetitions
  static constexpr size_t kRules = 1 << 16;        // named rules
  static constexpr uint32_t kRepetition = 100000;  // m and n of {m,n}
  static constexpr size_t kStates = 1 << 20;       // of the compiled automaton
};

struct SyntaxNode {
  enum class Kind { literal, characters, rule, sequence, choice, repeat };
  Kind kind = Kind::sequence;
  GrammarPosition at;
  std::string literal;             // bytes
  std::vector<CodeRange> ranges;   // characters: normalized, not empty
  uint32_t rule = 0;               // index of the rule
  std::vector<uint32_t> children;  // sequence (may be empty), choice, repeat (one)
  uint32_t min = 0, max = 0;       // repeat; kNoLimit: any number
};

struct SyntaxRule {
  std::string name;
  GrammarPosition at;
  uint32_t body = 0;
};

struct GrammarSyntax {
  std::vector<SyntaxNode> nodes;
  std::vector<SyntaxRule> rules;
  uint32_t root = 0;
};

// Throws Error, with line and column, for syntax errors, a missing `root`, undefined rules, rules defined
// twice, and exceeded limits.
GrammarSyntax parse_gbnf(std::string_view text, const GrammarSource& source = {});

}  // namespace tandem
