// GrammarStates runs a Grammar: where a text is in it, and where one more byte leads. The automaton over all
// ways to read the text at once is made as it is needed, and kept: a step that was taken before is one
// look-up.
//
// A state is a set of (state of a rule, stack) pairs. Stacks are shared: a stack node is the set of places to
// go back to when a rule ends, each with the stack node below it, and equal nodes are the same node. So the
// work of a step is polynomial in the length of the text, however ambiguous the grammar is, and places that
// can be told apart by nothing that may follow tend to be the same state. A call in last place leaves no
// trace on the stack.
//
// A value: copying it copies what it has learned. One thread. Throws only bad_alloc.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sample/grammar/grammar.h"
#include "sample/grammar/list_pool.h"

namespace tandem {

class GrammarStates {
 public:
  static constexpr uint32_t kDead = 0;  // no text that starts like this is in the grammar

  explicit GrammarStates(std::shared_ptr<const Grammar> grammar);

  // Before the first byte.
  uint32_t start();
  // After one more byte; kDead stays dead.
  uint32_t step(uint32_t state, uint8_t byte) {
    const uint32_t next = steps_[state * size_t{n_classes_} + grammar_->byte_class(byte)];
    return next != kUnknown ? next : compute_step(state, byte);
  }
  // Whether the text is complete here, and whether nothing can follow.
  bool is_complete(uint32_t state) const { return !sets_[state].empty() && sets_[state].back() == kBottom; }
  bool is_finished(uint32_t state) const { return is_complete(state) && sets_[state].size() == 1; }

  // What is kept grows with the text. When it is more than a limit, forget() drops all but the given states,
  // whose numbers change; true if it did.
  bool forget_if_large(std::span<uint32_t> keep, size_t limit_bytes = kLimitBytes);
  size_t n_states() const { return sets_.size(); }

 private:
  static constexpr uint32_t kUnknown = UINT32_MAX;
  static constexpr uint64_t kBottom = UINT64_MAX;  // below the root rule: the text can end
  static constexpr size_t kLimitBytes = size_t{64} << 20;

  // A state of a rule and the stack node below it; also a place to go back to.
  static uint64_t item(uint32_t rule_state, uint32_t stack) { return uint64_t{rule_state} << 32 | stack; }
  static uint32_t rule_state(uint64_t item) { return static_cast<uint32_t>(item >> 32); }
  static uint32_t stack(uint64_t item) { return static_cast<uint32_t>(item); }

  enum class Returns {
    allowed,
    done
  };  // done: in a rule that was entered here, where its caller has gone on already

  uint32_t compute_step(uint32_t state, uint8_t byte);
  void add(uint64_t item);
  void follow(Returns returns);
  void visit(uint64_t item, Returns returns);
  void call(const Grammar::Edge& edge, uint32_t stack);
  void enter_rules();
  uint32_t finish_state();
  uint32_t keep_state(uint32_t id, const ListPool& old_sets, const ListPool& old_stacks,
                      std::vector<uint32_t>& new_stack);

  std::shared_ptr<const Grammar> grammar_;
  uint32_t n_classes_;
  ListPool
      sets_;  // states: their items, those that read bytes only, and kBottom last where the text is complete
  ListPool stacks_;              // stack nodes: the places to go back to
  std::vector<uint32_t> steps_;  // [n_states, n_classes_]

  // While a state is made.
  std::vector<uint64_t> result_, todo_;
  std::vector<uint64_t> seen_;     // open addressing, see add()
  std::vector<uint32_t> seen_in_;  // the number of the step that wrote an entry of seen_
  size_t n_seen_ = 0;
  uint32_t step_number_ = 0;
  std::vector<std::vector<uint64_t>> callers_;  // of each rule
  std::vector<uint64_t> called_;                // heap of rank << 32 | rule
};

}  // namespace tandem
