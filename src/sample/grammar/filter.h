// GrammarFilter: which tokens a grammar allows next in one sequence. A token is allowed if the text followed
// by its bytes is a prefix of a text of the grammar. An end-of-generation token is allowed exactly where the
// text is complete; other tokens without text, such as control tokens, never.
//
// One token is checked by its bytes alone. All tokens are checked by walking the tree of the vocabulary and
// the grammar's automaton together; a byte that no text allows prunes all tokens below it. The lower bound of
// a walk is reading the tree, 12 bytes per node, where nearly everything is allowed, as inside a JSON string.
// The result is cached by state; with a cached result the lower bound is reading and writing the logits.
//
// Measured with tests/bench/grammar_bench.cpp: JSON, 128,256 tokens in the shape of Llama 3's (587 thousand
// nodes, 7 MB), one core of a 2.3 GHz Xeon:
//   the chosen token fits (most tokens of a model that writes JSON)   0.05 us
//   all tokens, where few are allowed: start of a value, of a key     0.06 ms the first time
//   all tokens, inside a string (127,889 allowed)                     3.9 ms the first time; bound 0.7 ms
//   all tokens, in a state seen before                                0.05 to 0.09 ms; bound 0.012 ms
//   building the tree, once per sampler                               53 ms
// The bounds assume 10 GB/s.
//
// A value type, like the sampler that owns it: copying copies the state. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "sample/grammar/states.h"
#include "sample/grammar/token_trie.h"

namespace tandem {

class GrammarFilter {
 public:
  GrammarFilter(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie,
                std::vector<int32_t> eog);

  // Returns whether this token may come next.
  bool allows(int32_t token);
  // Whether the text is complete; whether, in addition, nothing can follow.
  bool is_complete() const { return states_.is_complete(state_); }
  bool is_finished() const { return ended_ || states_.is_finished(state_); }

  // Sets the logits of all tokens that may not come next to -inf. Returns false if none is left.
  bool apply(std::span<float> logits);
  // Returns the end-of-generation token with the largest logit; -1 if there is none.
  int32_t best_end(std::span<const float> logits) const;

  // Advances by a token. Throws Error(usage) if it is not allowed.
  void accept(int32_t token);
  void reset();

 private:
  using Mask = std::vector<uint64_t>;  // one bit per token

  bool is_end(int32_t token) const;
  uint32_t state_after(int32_t token);
  const Mask& mask();
  void forget_if_large(std::span<uint32_t> also_keep);

  GrammarStates states_;
  std::shared_ptr<const TokenTrie> trie_;
  std::vector<int32_t> eog_;
  uint32_t start_ = 0, state_ = 0;
  bool ended_ = false;  // an end-of-generation token was accepted
  std::unordered_map<uint32_t, Mask> masks_;
  std::vector<uint32_t> walk_;  // the grammar state at each depth of the tree
};

}  // namespace tandem
