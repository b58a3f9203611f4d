#include "tools/synth/expert_skew.h"

#include <algorithm>
#include <cmath>

#include "tools/synth/random.h"

namespace tandem::tools {
namespace {

constexpr double kMostOfTokens = 0.45;

double sum_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

// How many standard deviations a normal variable exceeds with probability p < 1/2.
double deviations_exceeded(double p) {
  double low = 0, high = 40;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(middle / std::sqrt(2.0)) / 2 > p ? low : high) = middle;
  }
  return low;
}

}  // namespace

std::vector<double> zipf_shares(int n_expert, int n_used, double skew) {
  std::vector<double> shares(static_cast<size_t>(n_expert));
  if (n_used >= kMostOfTokens * n_expert) {
    std::fill(shares.begin(), shares.end(), static_cast<double>(n_used) / n_expert);
    return shares;
  }
  // A factor for the law so that the limited shares add up.
  double low = 0, high = n_used * std::pow(n_expert, skew);
  for (int i = 0; i < 100; ++i) {
    const double factor = (low + high) / 2;
    for (int r = 0; r < n_expert; ++r) {
      shares[static_cast<size_t>(r)] = std::min(kMostOfTokens, factor * std::pow(r + 1, -skew));
    }
    (sum_of(shares) < n_used ? low : high) = factor;
  }
  return shares;
}

std::vector<float> skewed_row_factors(int n_expert, int n_used, double skew, uint64_t seed) {
  std::vector<float> factors;
  for (const double share : zipf_shares(n_expert, n_used, skew)) {
    factors.push_back(static_cast<float>(1 / deviations_exceeded(std::min(share, kMostOfTokens))));
  }
  // The usual router's logits deviate by 1: so do these on the average.
  double squares = 0;
  for (const float factor : factors) squares += static_cast<double>(factor) * factor;
  const auto scale = static_cast<float>(1 / std::sqrt(squares / n_expert));
  for (float& factor : factors) factor *= scale;
  Random random(seed);
  for (size_t i = factors.size(); i > 1; --i) {
    std::swap(factors[i - 1], factors[random.below(static_cast<uint32_t>(i))]);
  }
  return factors;
}

}  // namespace tandem::tools
