#include "tools/perplexity/score.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace tandem::tools {

double negative_log_likelihood(std::span<const float> logits, int32_t target) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return std::log(sum) - (static_cast<double>(logits[target]) - largest);
}

void PerplexityEstimate::add(double nll) {
  ++count_;
  sum_ += nll;
  sum_of_squares_ += nll * nll;
}

double PerplexityEstimate::perplexity() const {
  return std::exp(sum_ / static_cast<double>(count_));
}

double PerplexityEstimate::standard_error() const {
  if (count_ < 2) return 0;
  const auto n = static_cast<double>(count_);
  const double mean = sum_ / n;
  const double variance = std::max(sum_of_squares_ / n - mean * mean, 0.0);
  return std::sqrt(variance / (n - 1)) * perplexity();
}

void score_chunk(Session& session, std::span<const int32_t> chunk, std::optional<int32_t> bos,
                 const ScoreFn& score, const std::function<bool()>& stop) {
  const auto interrupt = [] { throw Error(ErrorCode::interrupted, "interrupted"); };
  const auto first = static_cast<size_t>(first_scored(static_cast<int64_t>(chunk.size())));
  TANDEM_CHECK(first < chunk.size());
  std::vector<int32_t> tokens(chunk.begin(), chunk.end() - 1);  // the last token's logits are not needed
  if (bos) tokens[0] = *bos;

  // Logits predict the next token, so the first ones needed are those of token first - 1.
  session.truncate(0);
  const std::span<const int32_t> context = std::span(tokens).first(first - 1);
  session.append(context, [&stop](int64_t) { return !stop(); });
  if (stop()) interrupt();
  session.evaluate(std::span(tokens).subspan(first - 1),
                   [&](int64_t at, int64_t n, std::span<const float> logits) {
                     const size_t n_vocab = logits.size() / static_cast<size_t>(n);
                     for (int64_t i = 0; i < n; ++i) {
                       const auto row = logits.subspan(static_cast<size_t>(i) * n_vocab, n_vocab);
                       score(row, chunk[first + static_cast<size_t>(at + i)]);
                     }
                     if (stop()) interrupt();
                   });
}

}  // namespace tandem::tools
