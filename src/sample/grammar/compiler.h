// Compiles syntax to an automaton in two passes: emits the states of every rule, then analyses all rules
// together (which are nullable, which end, which call each other before reading). Used only by
// Grammar::parse.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sample/grammar/grammar.h"

namespace tandem {

class GrammarCompiler {
 public:
  GrammarCompiler(const GrammarSyntax& syntax, const GrammarSource& source)
      : syntax_(syntax), source_(source) {}

  // Throws Error; see Grammar::parse.
  std::shared_ptr<const Grammar> compile();

 private:
  struct RuleInfo {
    uint32_t owner;      // the named rule that contains it
    bool is_repetition;  // {m,n}: n calls in a row
  };

  // Emitting. emit_* adds what the node matches after state `from` and returns the state behind it. A state
  // that has incoming edges from elsewhere is passed as `from` at most once, since edges are only added.
  void emit_rules();
  uint32_t emit(const SyntaxNode& node, uint32_t from);
  uint32_t emit_literal(const std::string& bytes, uint32_t from);
  uint32_t emit_characters(const std::vector<CodeRange>& ranges, uint32_t from);
  uint32_t emit_choice(const SyntaxNode& node, uint32_t from);
  uint32_t emit_repeat(const SyntaxNode& node, uint32_t from);
  void emit_counted_rule(uint32_t rule, const SyntaxNode& node);
  uint32_t new_state();
  uint32_t new_rule(bool is_repetition);
  void add_edge(uint32_t from, Grammar::Edge edge);
  void add_nothing(uint32_t from, uint32_t to) { add_edge(from, {to, 0, Grammar::EdgeKind::nothing, 0, 0}); }

  // Analysis of all rules.
  void find_nullable();
  void relax_nullable_repetitions();
  void rank_rules();
  [[noreturn]] void left_recursion(const std::vector<std::vector<uint32_t>>& callees,
                                   const std::vector<uint32_t>& n_callers);
  void check_ends();
  std::vector<uint32_t> skip_empty_edges() const;
  std::shared_ptr<const Grammar> finish();

  const GrammarSyntax& syntax_;
  const GrammarSource& source_;
  std::vector<std::vector<Grammar::Edge>> edges_;  // of each state
  std::vector<bool> is_final_;                     // of each state
  std::vector<uint32_t> rule_of_;                  // of each state
  std::vector<bool> at_start_;                     // of each state: reachable before its rule reads anything
  std::vector<Grammar::Rule> rules_;
  std::vector<RuleInfo> infos_;  // of each rule
  uint32_t current_rule_ = 0;
};

}  // namespace tandem
