#include "speculate/speculation.h"

#include <algorithm>
#include <chrono>

namespace tandem {

Speculation::Speculation(std::unique_ptr<Drafter> drafter, int64_t n_max, Checks checks)
    : drafter_(std::move(drafter)), policy_(*drafter_, n_max), checks_(checks) {}

std::span<const int32_t> Speculation::guess(std::span<const int32_t> tokens, int32_t last, int64_t n_most,
                                            const DraftPolicy::Step& step) {
  policy_.settle_step(n_tokens_);
  n_tokens_ = 0;
  text_.assign(tokens.begin(), tokens.end());
  text_.push_back(last);
  guesses_.clear();
  n_judged_ = 0;
  is_wrong_ = false;
  const auto most = static_cast<size_t>(std::clamp<int64_t>(n_most, 0, policy_.n_max()));
  const auto wants_more = [&] {
    return guesses_.size() < most &&
           (checks_ == Checks::all || drafter_->is_free() || policy_.wants_more(guesses_, step));
  };
  const auto start = std::chrono::steady_clock::now();
  // The first guess of a free drafter is judged even if it is not checked.
  if (drafter_->is_free() || wants_more()) {
    drafter_->draft(text_, [&](const Guess& guess) {
      guesses_.push_back(guess);
      return wants_more();
    });
  }
  draft_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const std::span<const Guess> eligible =
      std::span<const Guess>(guesses_).first(std::min(most, guesses_.size()));
  n_to_check_ =
      checks_ == Checks::all ? eligible.size() : static_cast<size_t>(policy_.n_to_check(eligible, step));
  ids_.clear();
  for (size_t i = 0; i < n_to_check_; ++i) ids_.push_back(guesses_[i].id);
  n_checked_ += static_cast<int64_t>(n_to_check_);
  return ids_;
}

void Speculation::add_step(int64_t n_rows, double seconds) {
  const bool drafted = !drafter_->is_free() && !guesses_.empty();
  policy_.add_step(n_rows, seconds, drafted ? static_cast<int64_t>(guesses_.size()) : 0,
                   drafted ? draft_seconds_ : 0);
}

void Speculation::add_token(int32_t id) {
  ++n_tokens_;
  if (is_wrong_ || n_judged_ >= guesses_.size()) return;
  const Guess& guess = guesses_[n_judged_];
  is_wrong_ = guess.id != id;
  policy_.add_guess(guess.confidence, !is_wrong_);
  if (!is_wrong_ && n_judged_ < n_to_check_) ++n_right_;
  ++n_judged_;
}

}  // namespace tandem
