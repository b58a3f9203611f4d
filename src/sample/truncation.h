// Samplers that only remove candidates. Each leaves at least one; only typical_p may remove the likeliest.
// Threads and ownership: see candidates.h.
#pragma once

#include <cstdint>

#include "sample/candidates.h"

namespace tandem {

// Keeps the k largest logits, sorted. k <= 0: all.
void top_k(Candidates& candidates, int32_t k);

// Keeps the likeliest candidates whose probabilities sum to at least p, sorted. p >= 1: all. "The Curious
// Case of Neural Text Degeneration", Holtzman et al. 2019.
void top_p(Candidates& candidates, float p, size_t min_keep);

// Keeps those at least p times as likely as the likeliest. p <= 0: all.
void min_p(Candidates& candidates, float p, size_t min_keep);

// Keeps those whose surprise is nearest to the entropy, until their probabilities sum to more than p. p >= 1:
// all. "Locally Typical Sampling", Meister et al. 2022.
void typical_p(Candidates& candidates, float p, size_t min_keep);

// Keeps those within n standard deviations of the largest logit. n <= 0: all. "Top-n-sigma", Tang et al.
// 2024.
void top_n_sigma(Candidates& candidates, float n);

}  // namespace tandem
