// Guesses by a smaller model with the same vocabulary, which has a session and a placement of its own. It always takes its
// most likely token.
#pragma once

#include "engine/session.h"
#include "speculate/drafter.h"

namespace tandem {

// Throws Error(usage), naming both files and the first difference, unless the tokens of `draft` mean the same in `model`.
// One may have more tokens than the other; those are never guessed.
void check_same_vocabulary(const Model& draft, const Model& model);

// The most likely token, and its probability as a confidence.
Guess most_likely(std::span<const float> logits);
// The middle of the probabilities that a confidence of most_likely() stands for.
double likelihood(int confidence);

class ModelDrafter final : public Drafter {
 public:
  // `session` is of the draft model and outlives this; nobody else uses it. n_vocab: of the model that checks.
  ModelDrafter(Session& session, int64_t n_vocab) : session_(session), n_vocab_(n_vocab) {}

  // Computes what `text` has beyond the text before, then one step a guess. Guesses nothing for a text that the
  // session's context does not hold.
  void draft(std::span<const int32_t> text, const std::function<bool(const Guess&)>& take) override;
  bool is_free() const override { return false; }
  double prior(int confidence) const override { return likelihood(confidence); }

 private:
  Session& session_;
  int64_t n_vocab_;
};

}  // namespace tandem
