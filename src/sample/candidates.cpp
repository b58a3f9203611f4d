#include "sample/candidates.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace tandem {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// NaN or +inf.
bool is_bad(float logit) { return !(logit < kInfinity); }

[[noreturn]] void bad_logit(std::span<const float> logits, int64_t position) {
  for (size_t i = 0; i < logits.size(); ++i) {
    if (is_bad(logits[i])) {
      throw_error(ErrorCode::numeric, "logits after %lld tokens: %s for token %zu, a finite number is needed",
                  static_cast<long long>(position), std::isnan(logits[i]) ? "NaN" : "infinity", i);
    }
  }
  throw_error(ErrorCode::numeric, "logits after %lld tokens: all are -infinity, no token can be chosen",
              static_cast<long long>(position));
}

}  // namespace

void check_logits(std::span<const float> logits, int64_t position) {
  // four independent chains, as one would wait for itself
  unsigned bad[4] = {0, 0, 0, 0};
  unsigned finite[4] = {0, 0, 0, 0};
  size_t i = 0;
  for (; i + 4 <= logits.size(); i += 4) {
    for (size_t j = 0; j < 4; ++j) {
      bad[j] |= static_cast<unsigned>(is_bad(logits[i + j]));
      finite[j] |= static_cast<unsigned>(logits[i + j] > -kInfinity);
    }
  }
  for (; i < logits.size(); ++i) {
    bad[0] |= static_cast<unsigned>(is_bad(logits[i]));
    finite[0] |= static_cast<unsigned>(logits[i] > -kInfinity);
  }
  if ((bad[0] | bad[1] | bad[2] | bad[3]) != 0 || (finite[0] | finite[1] | finite[2] | finite[3]) == 0) {
    bad_logit(logits, position);
  }
}

int32_t argmax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

void Candidates::assign(std::span<const float> logits) {
  items_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) items_[i] = {static_cast<int32_t>(i), logits[i], 0.0f};
  n_sorted_ = 0;
}

void Candidates::sort_front(size_t n) {
  n = std::min(n, size());
  if (n <= n_sorted_) return;
  const auto from = items_.begin() + static_cast<std::ptrdiff_t>(n_sorted_);
  const auto to = items_.begin() + static_cast<std::ptrdiff_t>(n);
  const size_t wanted = n - n_sorted_, unsorted = size() - n_sorted_;
  if (wanted == unsorted) {
    std::sort(from, to, comes_before);
  } else if (wanted <= unsorted / 64 + 64) {
    std::partial_sort(from, to, items_.end(), comes_before);  // a heap of `wanted`, rarely touched
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
  items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(n));
  n_sorted_ -= std::min(n_sorted_, n);
}

void Candidates::keep_from(float min_logit) {
  std::erase_if(items_, [min_logit](const Candidate& c) { return c.logit < min_logit; });
  n_sorted_ = std::min(n_sorted_, size());  // what was removed came after all that was kept
}

float Candidates::max_logit() const {
  if (n_sorted_ > 0) return items_.front().logit;
  float max = -kInfinity;
  for (const Candidate& c : items_) max = std::max(max, c.logit);
  return max;
}

void Candidates::softmax() {
  // Rounding a double result to float hides that math libraries differ in the last bit.
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
