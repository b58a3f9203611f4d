#include "sample/penalties.h"

#include <algorithm>

namespace tandem {

Penalties::Penalties(const SamplerParams& params, int32_t n_vocab, int32_t n_ctx)
    : repeat_(params.repeat_penalty),
      presence_(params.presence_penalty),
      frequency_(params.frequency_penalty) {
  if (repeat_ == 1.0f && presence_ == 0.0f && frequency_ == 0.0f) return;
  window_size_ = static_cast<size_t>(params.repeat_last_n < 0 ? n_ctx : params.repeat_last_n);
  if (active()) counts_.resize(n_vocab);
}

void Penalties::accept(int32_t token) {
  if (!active()) return;
  ++counts_[token];
  if (window_.size() < window_size_) {
    window_.push_back(token);
    return;
  }
  --counts_[window_[next_]];
  window_[next_] = token;
  next_ = (next_ + 1) % window_size_;
}

void Penalties::apply(Candidates& candidates) const {
  if (!active()) return;
  for (Candidate& c : candidates.mutable_items()) {
    const int32_t count = counts_[c.id];
    if (count == 0) continue;
    // dividing a negative logit would make the token likelier
    c.logit = c.logit <= 0 ? c.logit * repeat_ : c.logit / repeat_;
    c.logit -= static_cast<float>(count) * frequency_ + presence_;
  }
  candidates.logits_changed();
}

void Penalties::reset() {
  window_.clear();
  next_ = 0;
  std::fill(counts_.begin(), counts_.end(), 0);
}

}  // namespace tandem
