// Log probabilities of tokens: the log softmax of the logits as the model computed them, before biases,
// penalties, temperature and filters. So they do not depend on how the token was chosen.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tandem {

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;  // natural logarithm, <= 0; -inf for a logit of -inf
};

// A chosen token and the most likely ones in its place.
struct TokenLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // the most likely first; the lower id first on ties
};

// logits [n_vocab] are finite or -inf, not all -inf; `id` is one of them. `n_top` may exceed n_vocab.
TokenLogprobs logprobs_of(std::span<const float> logits, int32_t id, int32_t n_top);

}  // namespace tandem
