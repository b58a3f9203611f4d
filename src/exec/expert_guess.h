// ExpertGuesser: which experts of a layer tokens are likely to choose, told before the layer's router runs: by that router
// and the input of the layer before, which is much like its own. With the same input, they are the router's choice.
//
// Not for a layer whose router has another input than its experts, such as a latent mixture. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "exec/expert_router.h"

namespace tandem {

class ExpertGuesser {
 public:
  // Whether the router ranks n_expert experts for rows of n_cols.
  static bool can_guess(const ExpertRouter& router, int64_t n_expert, int64_t n_cols);
  // The n experts that rank highest for each token of x [n_tokens, n_cols], each once. Valid until the next call.
  std::span<const int32_t> guess(const ExpertRouter& router, const float* x, int64_t n_tokens, int64_t n);

 private:
  void compute_logits(const ExpertRouter& router, const float* x, size_t n_tokens);

  std::vector<float> logits_;  // [n_tokens, n_expert]
  std::vector<float> row_, selection_bias_, room_;
  std::vector<int32_t> guesses_;
};

}  // namespace tandem
