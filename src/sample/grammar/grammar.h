// Grammar: a compiled context-free grammar over bytes, as a pushdown automaton. Each rule is a small
// automaton whose edges read a byte, read nothing, or call another rule. Character classes are expanded to
// UTF-8, so a state may lie inside a character. A repetition {m,n} is a rule of n calls, so the cost of
// nested repetitions adds up, it does not multiply.
//
// Compiled once from text and shared: immutable, any thread may read it. GrammarStates runs it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "sample/grammar/syntax.h"

namespace tandem {

class Grammar {
 public:
  // Compiles GBNF (see syntax.h). Throws Error, with line and column, for syntax errors, left recursion (a
  // rule that calls itself before it has read anything), a rule that can never end, and more states than
  // GrammarLimits.
  static std::shared_ptr<const Grammar> parse(std::string_view gbnf, const GrammarSource& source = {});

  enum class EdgeKind : uint8_t {
    byte,           // reads a byte in low..high
    nothing,        // reads nothing
    call,           // continues when `rule` has ended
    call_nonempty,  // the same, if the rule read at least one byte
  };
  struct Edge {
    uint32_t target;
    uint32_t rule;  // call
    EdgeKind kind;
    uint8_t low, high;  // byte
  };
  struct State {
    uint32_t first_edge, n_edges;
    bool is_final;    // the rule may end here
    bool only_final;  // and has no edges
    bool reads;       // has an edge of kind byte
  };
  struct Rule {
    uint32_t entry;  // state
    bool is_nullable;
    uint32_t rank;  // higher than that of every caller that has read nothing before the call
  };

  uint32_t root() const { return root_; }
  std::span<const State> states() const { return states_; }
  std::span<const Rule> rules() const { return rules_; }
  std::span<const Edge> edges(uint32_t state) const {
    return {edges_.data() + states_[state].first_edge, states_[state].n_edges};
  }
  // Bytes that all edges treat alike form one class.
  uint32_t byte_class(uint8_t byte) const { return byte_class_[byte]; }
  uint32_t n_byte_classes() const { return n_byte_classes_; }

 private:
  friend class GrammarCompiler;
  Grammar() = default;

  uint32_t root_ = 0;
  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<Rule> rules_;  // named rules first, then those of repetitions
  std::array<uint8_t, 256> byte_class_{};
  uint32_t n_byte_classes_ = 0;
};

}  // namespace tandem
