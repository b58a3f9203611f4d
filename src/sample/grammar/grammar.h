// Grammar: a compiled context-free grammar over bytes, as a pushdown automaton. Each rule is a small
// automaton whose edges read a byte, read nothing, or call another rule; classes are spelled out in UTF-8, so
// that a state may lie inside a character. Repetitions {m,n} are rules of n calls: their cost is a sum, never
// a product.
//
// Made once from text and shared: immutable, any thread may read it. What runs it is GrammarStates.
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
  // GBNF (see syntax.h). Throws Error, with line and column, for what parse_gbnf refuses, for left
  // recursion (a rule that can come back to itself before it has read anything), for a rule without an end,
  // and for more states than GrammarLimits.
  static std::shared_ptr<const Grammar> parse(std::string_view gbnf, const GrammarSource& source = {});

  enum class EdgeKind : uint8_t {
    byte,           // reads one of low..high
    nothing,        // goes on without reading
    call,           // goes on where `rule` has ended
    call_nonempty,  // the same, but what the rule read is not empty
  };
  struct Edge {
    uint32_t target;
    uint32_t rule;  // call
    EdgeKind kind;
    uint8_t low, high;  // byte
  };
  struct State {
    uint32_t first_edge, n_edges;
    bool is_final;    // the rule can end here
    bool only_final;  // and can do nothing else
    bool reads;       // has an edge of kind byte
  };
  struct Rule {
    uint32_t entry;  // state
    bool is_nullable;
    uint32_t rank;  // a rule that is called before anything was read has a higher rank than its caller
  };

  uint32_t root() const { return root_; }
  std::span<const State> states() const { return states_; }
  std::span<const Rule> rules() const { return rules_; }
  std::span<const Edge> edges(uint32_t state) const {
    return {edges_.data() + states_[state].first_edge, states_[state].n_edges};
  }
  // Bytes that no edge tells apart are one class.
  uint32_t byte_class(uint8_t byte) const { return byte_class_[byte]; }
  uint32_t n_byte_classes() const { return n_byte_classes_; }

 private:
  friend class GrammarCompiler;
  Grammar() = default;

  uint32_t root_ = 0;
  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<Rule> rules_;  // the named ones first, then those of repetitions
  std::array<uint8_t, 256> byte_class_{};
  uint32_t n_byte_classes_ = 0;
};

}  // namespace tandem
