#include "exec/cache_policy.h"

#include <cmath>
#include <limits>

namespace tandem {

KeepsFrequent::KeepsFrequent(size_t n_expert, double half_life)
    : growth_(std::exp2(1 / half_life)), uses_(n_expert, 0.0) {}

void KeepsFrequent::used(size_t expert, int64_t n_tokens) {
  uses_[expert] += now_ * static_cast<double>(n_tokens);
}

void KeepsFrequent::end_step() {
  now_ *= growth_;
  if (now_ < 1e100) return;
  for (double& uses : uses_) uses /= now_;
  now_ = 1;
}

std::unique_ptr<CachePolicy> usual_cache_policy(size_t n_expert) {
  return std::make_unique<KeepsFrequent>(n_expert, KeepsFrequent::kHalfLife);
}

void KeepsExpected::expect(std::span<const int32_t> experts) {
  for (const int32_t expert : experts) is_expected_[static_cast<size_t>(expert)] = true;
}

void KeepsExpected::end_step() {
  KeepsFrequent::end_step();
  is_expected_.assign(is_expected_.size(), false);
}

double KeepsExpected::score(size_t expert) const {
  return is_expected_[expert] ? std::numeric_limits<double>::infinity() : KeepsFrequent::score(expert);
}

}  // namespace tandem
