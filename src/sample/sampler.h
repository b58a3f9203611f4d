// Chooses the next token of one sequence from its logits. One Sampler per sequence, used by one thread at a
// time; a copy has the whole state, so both continue with the same tokens.
//
//   Sampler sampler(params, {.n_vocab = 32000, .n_ctx = 4096, .eog = {2}, .piece = ...});
//   for (int32_t token : prompt) sampler.accept_prompt(token);
//   loop: const int32_t token = sampler.sample(logits); sampler.accept(token);
//
// Order: biases, the stages of SamplerParams, the draw. With temp <= 0 the choice is greedy: the largest
// logit, the lowest id on ties, without xtc, typ_p and temperature, so nothing is random. With mirostat 1 or
// 2 only biases and temperature come before its own draw. Once its buffers have their size, sample()
// allocates only for new states of a grammar.
//
// With a grammar the token is chosen as without one; only if the grammar does not allow it, it is chosen
// again among the allowed tokens. So a grammar costs next to nothing while the model follows it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sample/candidates.h"
#include "sample/dry.h"
#include "sample/grammar/filter.h"
#include "sample/logit_scan.h"
#include "sample/mirostat.h"
#include "sample/params.h"
#include "sample/penalties.h"
#include "sample/rng.h"
#include "sample/token_logits.h"

namespace tandem {

// Properties of the model that the sampler needs.
struct SamplerModel {
  int32_t n_vocab = 0;
  int32_t n_ctx = 0;  // the window that -1 stands for
  // End-of-generation tokens: ignore_eos bans them; a grammar allows them where its text is complete.
  std::vector<int32_t> eog;
  TokenPiece piece;  // for DRY with sequence breakers and for grammars; "" for control tokens
  // For grammars, to share one tree between samplers; null: the sampler builds its own.
  std::shared_ptr<const TokenTrie> trie = nullptr;
};
std::shared_ptr<const TokenTrie> make_token_trie(const SamplerModel& model);

class Sampler {
 public:
  // Throws Error(usage) for invalid parameters, including biases of tokens that do not exist.
  Sampler(const SamplerParams& params, SamplerModel model);

  // Adds a token of the prompt. With a grammar, a new text starts after it.
  void accept_prompt(int32_t token);
  // Adds a chosen token. Throws Error(usage) if the grammar does not allow it. Token ids are in [0, n_vocab).
  void accept(int32_t token);

  // Returns the next token for logits [n_vocab]; does not accept it. Throws Error(numeric), with the
  // position, for logits that are NaN, +inf or all -inf, and Error(usage) if biases ban every token, or if no
  // token of the vocabulary continues the grammar's text.
  int32_t sample(std::span<const float> logits);
  // The same token. Asks for all logits only where the largest do not tell.
  int32_t sample(const TokenLogits& logits);
  // How many of the largest logits tell the next token, at least while the grammar allows it; 0: all are needed.
  size_t n_largest() const;
  // Returns whether there is a grammar whose text is complete and cannot continue: then only an
  // end-of-generation token can follow, if the vocabulary has one, even if ignore_eos bans it.
  bool is_finished() const { return grammar_ && grammar_->is_finished(); }

  // Forgets the sequence and restarts the random numbers (different ones if the seed is random).
  void reset();

  // The seed in use, also if it was chosen randomly.
  uint64_t seed() const { return seed_; }
  // Tokens accepted since construction or reset().
  int64_t n_accepted() const { return n_accepted_; }

 private:
  void remember(int32_t token);
  bool takes_top_k_first() const;
  int32_t choose(std::span<const float> logits);
  int32_t choose_of_top(const TokenLogits& logits);
  int32_t choose_of_candidates();
  int32_t choose_allowed(std::span<const float> logits);
  int32_t choose_end(std::span<const float> logits) const;
  void apply_biases();
  void apply_temperature();
  void apply(SamplerStage stage);

  SamplerParams params_;
  int32_t n_vocab_;
  std::vector<SamplerStage> stages_;  // the stages of params_ that have an effect
  bool greedy_;
  uint64_t seed_;
  Rng rng_;
  Penalties penalties_;
  std::optional<GrammarFilter> grammar_;
  std::vector<float> allowed_logits_;
  Dry dry_;
  Mirostat mirostat_;
  LogitScan scan_;
  Candidates candidates_;
  int64_t n_accepted_ = 0;
};

}  // namespace tandem
