// The tokens of each step of a prompt that a pipeline reads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace tandem {

// A micro-batch more costs each stage the reading of its weights; a larger one keeps the later stages waiting for the first
// one, and the first ones for the last. Of n / u + S - 1 turns of u + c tokens' time each, where reading the weights is worth c
// tokens, the best u is the root of c n / (S - 1).
inline int64_t pipeline_micro_batch(int64_t n_tokens, int64_t n_ubatch, int n_stages) {
  constexpr double kWeightsInTokens = 64;
  constexpr int64_t kStep = 32;
  if (n_stages == 1) return n_ubatch;
  const double best = std::sqrt(kWeightsInTokens * static_cast<double>(n_tokens) / (n_stages - 1));
  return std::min(n_ubatch, std::max<int64_t>(1, std::lround(best / kStep)) * kStep);
}

}  // namespace tandem
