// GrammarStates runs a Grammar: it maps a state and a byte to the next state. The automaton over all ways to
// read the text at once is built lazily and cached, so a transition seen before is one look-up.
//
// A state is a set of (state of a rule, stack) pairs. Stacks are shared: a stack node is the set of return
// addresses of a rule, each with the stack node below it, and equal nodes are the same node. So the work of a
// transition is polynomial in the length of the text, however ambiguous the grammar, and positions with the
// same possible continuations tend to be the same state. Tail calls push nothing.
//
// A value type: copying copies the cache. One thread. Throws only bad_alloc.
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
  static constexpr uint32_t kDead = 0;  // no text of the grammar starts like this

  explicit GrammarStates(std::shared_ptr<const Grammar> grammar);

  // The state before the first byte.
  uint32_t start();
  // The state after one more byte; kDead stays kDead.
  uint32_t advance(uint32_t state, uint8_t byte) {
    const uint32_t next = transitions_[state * size_t{n_classes_} + grammar_->byte_class(byte)];
    return next != kUnknown ? next : compute_transition(state, byte);
  }
  // Whether the text is complete here; whether, in addition, nothing can follow.
  bool is_complete(uint32_t state) const { return !sets_[state].empty() && sets_[state].back() == kBottom; }
  bool is_finished(uint32_t state) const { return is_complete(state) && sets_[state].size() == 1; }

  // The cache grows with the text. When it exceeds a limit, drops all states but those in `keep`, whose
  // numbers change, and returns true.
  bool forget_if_large(std::span<uint32_t> keep, size_t limit_bytes = kLimitBytes);
  size_t n_states() const { return sets_.size(); }

 private:
  static constexpr uint32_t kUnknown = UINT32_MAX;
  static constexpr uint64_t kBottom = UINT64_MAX;  // bottom of the stack: the text may end
  static constexpr size_t kLimitBytes = size_t{64} << 20;

  // A state of a rule and the stack node below it; also a return address.
  static uint64_t item(uint32_t rule_state, uint32_t stack) { return uint64_t{rule_state} << 32 | stack; }
  static uint32_t rule_state(uint64_t item) { return static_cast<uint32_t>(item >> 32); }
  static uint32_t stack(uint64_t item) { return static_cast<uint32_t>(item); }

  enum class Returns {
    allowed,
    done  // inside a rule that was entered here: its callers have continued already
  };

  uint32_t compute_transition(uint32_t state, uint8_t byte);
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
  ListPool sets_;                      // states: items with byte edges; kBottom last if the text is complete
  ListPool stacks_;                    // stack nodes: return addresses
  std::vector<uint32_t> transitions_;  // [n_states, n_classes_]

  // Working data while a state is computed.
  std::vector<uint64_t> result_, todo_;
  std::vector<uint64_t> seen_;     // open addressing, see add()
  std::vector<uint32_t> seen_in_;  // the number of the transition that wrote an entry of seen_
  size_t n_seen_ = 0;
  uint32_t transition_number_ = 0;
  std::vector<std::vector<uint64_t>> callers_;  // of each rule
  std::vector<uint64_t> called_;                // heap of rank << 32 | rule
};

}  // namespace tandem
