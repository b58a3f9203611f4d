#include "exec/cache_policy.h"

#include <cmath>

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

}  // namespace tandem
