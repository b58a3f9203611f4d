#include "sample/logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace tandem {

TokenLogprobs logprobs_of(std::span<const float> logits, int32_t id, int32_t n_top) {
  TANDEM_CHECK(id >= 0 && static_cast<size_t>(id) < logits.size() && n_top >= 0);
  // In double: a sum of 100000 floats loses digits that people compare.
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - max);
  const double log_sum = max + std::log(sum);
  const auto of = [&](int32_t token) {
    return TokenLogprob{token, static_cast<float>(std::min(logits[token] - log_sum, 0.0))};
  };
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto n = std::min(static_cast<size_t>(n_top), order.size());
  std::partial_sort(
      order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n), order.end(),
      [&](int32_t a, int32_t b) { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); });
  TokenLogprobs result{of(id), {}};
  for (size_t i = 0; i < n; ++i) result.top.push_back(of(order[i]));
  return result;
}

}  // namespace tandem
