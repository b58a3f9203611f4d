// Skewed use of a mixture's experts, for synthetic models: some experts are chosen far more often than others, as in
// trained models. The use follows Zipf's law: the r-th most used expert of a layer is chosen for a share of the tokens
// proportional to r^-skew, but for at most 45% of them; which expert is the r-th is random in each layer.
//
// Logits of random routers are normally distributed. A router row that is longer than the others has its logit more
// often among the highest, so the lengths of the rows make the skew. That is exact if the highest logits are those above
// one threshold, and close to it as they are a fixed number instead.
//
// Pure functions; nothing is thrown.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem::tools {

// The share of the tokens that each expert is to be chosen for, most used first. The shares add up to n_used.
// n_used < 0.45 * n_expert, or the shares are equal. skew >= 0.
std::vector<double> zipf_shares(int n_expert, int n_used, double skew);

// The factor for each row of a layer's router, in the order of its experts.
std::vector<float> skewed_row_factors(int n_expert, int n_used, double skew, uint64_t seed);

}  // namespace tandem::tools
