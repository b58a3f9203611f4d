// A grammar as it was written: what the parser makes and the compiler reads. Plain data; nodes refer to each
// other by index, so that no depth of nesting costs stack when it is destroyed.
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

// Where a text came from, for messages: the path of a file or the name of an option, and the kind of the
// error.
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

// What a hostile or mistaken text can ask for at most.
struct GrammarLimits {
  static constexpr size_t kTextBytes = size_t{4} << 20;
  static constexpr size_t kDepth = 256;            // of groups and repetitions within each other
  static constexpr size_t kRules = 1 << 16;        // named ones
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

// Throws Error, with line and column, for a text that is no grammar, lacks `root`, uses a rule that is not
// defined or defines one twice, or passes a limit.
GrammarSyntax parse_gbnf(std::string_view text, const GrammarSource& source = {});

}  // namespace tandem
