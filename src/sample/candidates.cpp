#include "sample/candidates.h"

#include <algorithm>
#include <cmath>

namespace tandem {

void Candidates::assign(std::span<const float> logits) {
  items_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) items_[i] = {static_cast<int32_t>(i), logits[i], 0.0f};
  n_sorted_ = 0;
}

void Candidates::assign_largest(LogitScan& scan, size_t k) {
  items_.clear();
  scan.for_each_from(scan.bound_of_largest(k), [this](int32_t id, float logit) {
    items_.push_back({id, logit, 0.0f});
  });
  n_sorted_ = 0;
}

void Candidates::assign_top(const TokenLogits& logits, size_t k) {
  items_.resize(std::min(k, logits.n_top()));
  for (size_t i = 0; i < items_.size(); ++i) items_[i] = {logits.top_id(i), logits.top_logit(i), 0.0f};
  n_sorted_ = items_.size();
}

void Candidates::sort_front(size_t n) {
  n = std::min(n, size());
  if (n <= n_sorted_) return;
  const auto from = items_.begin() + n_sorted_;
  const auto to = items_.begin() + n;
  const size_t wanted = n - n_sorted_, unsorted = size() - n_sorted_;
  if (wanted == unsorted) {
    std::sort(from, to, comes_before);
  } else if (wanted <= unsorted / 64 + 64) {
    std::partial_sort(from, to, items_.end(), comes_before);  // a heap of n candidates, rarely updated
  } else {
    std::nth_element(from, to, items_.end(), comes_before);
    std::sort(from, to, comes_before);
  }
  n_sorted_ = n;
}

void Candidates::keep_front(size_t n) {
  if (n >= size()) return;
  items_.resize(n);
  n_sorted_ = std::min(n_sorted_, n);
}

void Candidates::drop_front(size_t n) {
  items_.erase(items_.begin(), items_.begin() + n);
  n_sorted_ -= std::min(n_sorted_, n);
}

void Candidates::keep_from(float min_logit) {
  std::erase_if(items_, [min_logit](const Candidate& c) { return c.logit < min_logit; });
  n_sorted_ = std::min(n_sorted_, size());  // the removed ones came after all that are kept
}

float Candidates::max_logit() const {
  if (n_sorted_ > 0) return items_.front().logit;
  float max = -HUGE_VALF;
  for (const Candidate& c : items_) max = std::max(max, c.logit);
  return max;
}

void Candidates::softmax() {
  // Rounding a double to float hides last-bit differences between math libraries.
  const double max = max_logit();
  double sum = 0.0;
  for (Candidate& c : items_) {
    c.p = static_cast<float>(std::exp(static_cast<double>(c.logit) - max));
    sum += c.p;
  }
  for (Candidate& c : items_) c.p = static_cast<float>(c.p / sum);
}

size_t Candidates::best() const {
  if (n_sorted_ > 0) return 0;
  return static_cast<size_t>(std::min_element(items_.begin(), items_.end(), comes_before) - items_.begin());
}

size_t draw(Candidates& candidates, Rng& rng) {
  candidates.softmax();
  const auto items = candidates.items();
  double sum = 0.0;
  for (const Candidate& c : items) sum += c.p;
  const double target = rng.uniform() * sum;
  double running = 0.0;
  size_t last_possible = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    running += items[i].p;
    if (running > target) return i;
    if (items[i].p > 0) last_possible = i;
  }
  return last_possible;
}

}  // namespace tandem
