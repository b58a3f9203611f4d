// Chooses the next token of one sequence from its logits. One Sampler per sequence, used by one thread at a
// time; copying one copies its whole state, so that both go on with the same tokens.
//
//   Sampler sampler(params, {.n_vocab = 32000, .n_ctx = 4096, .eog = {2}, .piece = ...});
//   for (int32_t token : prompt) sampler.accept_prompt(token);
//   loop: const int32_t token = sampler.sample(logits); sampler.accept(token);
//
// Biases come first, then the stages of SamplerParams in their order, then the draw. With temp <= 0 the
// choice is greedy: the largest logit, the lowest id among equals, without xtc, typ_p and temperature, so
// that nothing random takes part. With mirostat 1 or 2 only the biases and the temperature come before its
// own draw. sample() allocates nothing once its buffers have their size, but for what a grammar learns.
//
// With a grammar the choice is made as without one, and if the grammar does not allow it, once more among the
// tokens that it does allow. So it costs next to nothing for a model that writes what the grammar wants.
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

namespace tandem {

// What a sampler must know of the model.
struct SamplerModel {
  int32_t n_vocab = 0;
  int32_t n_ctx = 0;  // tokens that a window of -1 looks back
  std::vector<int32_t>
      eog;           // the end-of-generation tokens: ignore_eos bans them, a grammar says where they may come
  TokenPiece piece;  // needed for DRY with sequence breakers and for grammars; "" for control tokens
  // For grammars, where several samplers share it; none: a sampler makes its own.
  std::shared_ptr<const TokenTrie> trie = nullptr;
};
std::shared_ptr<const TokenTrie> make_token_trie(const SamplerModel& model);

class Sampler {
 public:
  // Throws Error(usage) for parameters that make no sense, biases of tokens that do not exist included.
  Sampler(const SamplerParams& params, SamplerModel model);

  // Tells of a token that stands before what is to be sampled. With a grammar, what follows starts a new text
  // of it.
  void accept_prompt(int32_t token);
  // Tells of a token that was chosen. Throws Error(usage) for one that the grammar does not allow. A token id
  // is in [0, n_vocab).
  void accept(int32_t token);

  // The next token, for logits [n_vocab]; does not accept it. Throws Error(numeric) for logits that are NaN,
  // +inf or all -inf, naming the position, and Error(usage) when biases ban every token, or when no token of
  // the vocabulary goes on as the grammar wants.
  int32_t sample(std::span<const float> logits);
  // True when there is a grammar, its text is complete and nothing can follow: the next token, if the
  // vocabulary has one, can only be an end of generation, even where ignore_eos bans those.
  bool is_finished() const { return grammar_ && grammar_->is_finished(); }

  // Forgets the sequence and starts the random numbers again (other ones if the seed is random).
  void reset();

  // The seed in use, also when it was chosen at random.
  uint64_t seed() const { return seed_; }
  // Tokens accepted since the start.
  int64_t n_accepted() const { return n_accepted_; }

 private:
  void remember(int32_t token);
  int32_t choose(std::span<const float> logits);
  int32_t choose_allowed(std::span<const float> logits);
  int32_t choose_end(std::span<const float> logits) const;
  void apply_biases();
  void apply_temperature();
  void apply(SamplerStage stage);

  SamplerParams params_;
  int32_t n_vocab_;
  std::vector<SamplerStage> stages_;  // those of params_ that have something to do
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
