// From syntax to automaton, in two steps: emit the states of every rule, then look at all rules together
// (which can be empty, which end, which call each other before they read). Used by Grammar::parse only.
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
    uint32_t owner;      // the named rule whose text it is part of
    bool is_repetition;  // {m,n}: n calls in a row
  };

  // Emitting. emit_* add what the node reads behind state `from` and return the state behind it. Edges are
  // only added to states, so a state that others lead back to is never given to more than one of them.
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

  // Looking at the whole.
  void find_nullable();
  void relax_nullable_repetitions();
  void rank_rules();
  [[noreturn]] void left_recursion(const std::vector<std::vector<uint32_t>>& callees,
                                   const std::vector<uint32_t>& n_callers);
  void check_ends();
  std::vector<uint32_t> skip_steps() const;
  std::shared_ptr<const Grammar> finish();

  const GrammarSyntax& syntax_;
  const GrammarSource& source_;
  std::vector<std::vector<Grammar::Edge>> edges_;  // of each state
  std::vector<bool> is_final_;                     // of each state
  std::vector<uint32_t> rule_of_;                  // of each state
  std::vector<bool> at_start_;                     // of each state: reached before its rule has read anything
  std::vector<Grammar::Rule> rules_;
  std::vector<RuleInfo> infos_;  // of each rule
  uint32_t current_rule_ = 0;
};

}  // namespace tandem
