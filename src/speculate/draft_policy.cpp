#include "speculate/draft_policy.h"

#include <algorithm>

namespace tandem {
namespace {

constexpr double kLossShare = 0.02;  // of all time that may be lost
constexpr double kKeptGain = 5;      // steps: what was gained long ago does not pay for losses now
constexpr double kPriorWeight = 4;   // guesses that a prior counts for
constexpr double kMemory = 0.98;     // weight of what was seen before, with each new guess
constexpr double kSmoothing = 0.25;  // weight of a new measurement of seconds
constexpr double kRowCost = 0.08;    // of one more row, in steps, until it is measured

void blend(double& mean, double value) {
  mean = mean > 0 ? mean + kSmoothing * (value - mean) : value;
}

}  // namespace

DraftPolicy::DraftPolicy(const Drafter& drafter, int64_t n_max)
    : n_max_(n_max), seconds_(static_cast<size_t>(2 * n_max + 4)), was_done_(seconds_.size()) {
  for (int c = 0; c < kConfidences; ++c) {
    n_right_[static_cast<size_t>(c)] = kPriorWeight * drafter.prior(c);
    n_seen_[static_cast<size_t>(c)] = kPriorWeight;
  }
}

double DraftPolicy::share_right(int confidence) const {
  const auto c = static_cast<size_t>(confidence);
  return n_right_[c] / n_seen_[c];
}

void DraftPolicy::add_guess(int confidence, bool right) {
  const auto c = static_cast<size_t>(confidence);
  n_right_[c] = kMemory * n_right_[c] + (right ? 1 : 0);
  n_seen_[c] = kMemory * n_seen_[c] + 1;
}

double DraftPolicy::step_seconds(int64_t n_rows) const {
  const auto last = static_cast<int64_t>(seconds_.size()) - 1;
  const int64_t n = std::min(n_rows, last);
  const auto measured = [&](int64_t i) { return seconds_[static_cast<size_t>(i)]; };
  int64_t below = n, above = n;
  while (below > 0 && measured(below) <= 0) --below;
  while (above <= last && measured(above) <= 0) ++above;
  if (below == 0) return above <= last ? measured(above) : 0;
  if (below == n) return measured(n);
  if (above <= last) {
    const double part = static_cast<double>(n - below) / static_cast<double>(above - below);
    return measured(below) + part * (measured(above) - measured(below));
  }
  int64_t first = 1;
  while (measured(first) <= 0) ++first;
  double row = kRowCost * measured(first);
  if (below > first)
    row = std::max(0.0, measured(below) - measured(first)) / static_cast<double>(below - first);
  return measured(below) + row * static_cast<double>(n - below);
}

// Estimates may be far off: a step is at most twice as long as the longest that was measured.
int64_t DraftPolicy::most_rows() const {
  auto n = static_cast<int64_t>(seconds_.size()) - 1;
  while (n > 1 && seconds_[static_cast<size_t>(n)] <= 0) --n;
  return 2 * n;
}

// The seconds that may be lost on top of what a step without guesses takes.
double DraftPolicy::bearable() const {
  return kLossShare * total_ + step_seconds(1) - balance_;
}

int64_t DraftPolicy::n_to_check(std::span<const Guess> guesses, const Step& step) const {
  if (seconds_[1] <= 0) return 0;
  const double alone = step_seconds(step.n_rows);
  const double row = (step_seconds(step.n_rows + n_max_) - alone) / static_cast<double>(n_max_);
  const auto most = std::min({static_cast<int64_t>(guesses.size()), n_max_, most_rows() - step.n_rows});
  int64_t best = 0;
  double best_rate = 1 / alone;
  double n_tokens = 1, all_right = 1, rows_again = 0;
  for (int64_t k = 1; k <= most; ++k) {
    const double right = share_right(guesses[static_cast<size_t>(k - 1)].confidence);
    // Guess k is the first wrong one: the step's rows and k - 1 right guesses are computed again.
    if (step.is_repeated_when_wrong)
      rows_again += all_right * (1 - right) * static_cast<double>(step.n_rows + k - 1);
    all_right *= right;
    n_tokens += all_right;
    const double seconds = step_seconds(step.n_rows + k);
    const double at_worst =
        seconds - alone + (step.is_repeated_when_wrong ? row * static_cast<double>(step.n_rows) : 0);
    if (at_worst > bearable()) break;
    const double rate = n_tokens / (seconds + row * rows_again);
    if (rate <= best_rate) continue;
    best_rate = rate;
    best = k;
  }
  return best;
}

bool DraftPolicy::wants_more(std::span<const Guess> guesses, const Step& step) const {
  const auto n = static_cast<int64_t>(guesses.size());
  if (seconds_[1] <= 0 || n >= n_max_) return false;
  const double alone = step_seconds(step.n_rows);
  const double at_worst =
      step_seconds(step.n_rows + n + 1) - alone + static_cast<double>(n + 1) * guess_seconds_;
  if (at_worst > bearable()) return false;
  if (n == 0) return true;  // within what may be lost, to learn whether it pays
  if (guess_seconds_ <= 0 || step.n_rows + n + 1 > most_rows()) return false;
  // The next one, if it is as likely as the last, against the tokens a second of those so far.
  double n_tokens = 1, all_right = 1, best_rate = 1 / alone;
  for (int64_t k = 1; k <= n; ++k) {
    all_right *= share_right(guesses[static_cast<size_t>(k - 1)].confidence);
    n_tokens += all_right;
    const double seconds = step_seconds(step.n_rows + k) + static_cast<double>(k) * guess_seconds_;
    best_rate = std::max(best_rate, n_tokens / seconds);
  }
  const double gain = all_right * share_right(guesses.back().confidence);
  return gain >
         best_rate * (guess_seconds_ + step_seconds(step.n_rows + n + 1) - step_seconds(step.n_rows + n));
}

void DraftPolicy::add_step(int64_t n_rows, double seconds, int64_t n_guesses, double draft_seconds) {
  // The first step of a size may prepare what later ones use. If it took longer than as many steps of one token, it says
  // nothing of those.
  const double single = static_cast<double>(n_rows) * step_seconds(1);
  if (n_rows < static_cast<int64_t>(seconds_.size())) {
    const auto n = static_cast<size_t>(n_rows);
    const bool prepares = !was_done_[n] && n_rows > 1 && single > 0 && seconds > single;
    was_done_[n] = true;
    if (prepares) {
      seconds = step_seconds(n_rows);
    } else {
      blend(seconds_[n], seconds);
    }
  }
  if (n_guesses > 0) blend(guess_seconds_, draft_seconds / static_cast<double>(n_guesses));
  last_step_ = seconds + draft_seconds;
  // A step of one token loses its drafting; that it was slower or faster than others says nothing.
  last_lost_ = n_rows == 1 ? std::optional(draft_seconds) : std::nullopt;
}

void DraftPolicy::settle_step(int64_t n_tokens) {
  if (last_step_ <= 0) return;
  const double plain = step_seconds(1);
  const double lost = last_lost_.value_or(last_step_ - static_cast<double>(n_tokens) * plain);
  total_ += last_step_;
  last_step_ = 0;
  if (seconds_[1] <= 0) return;
  lost_ += lost;
  balance_ = std::max(balance_ + lost, -kKeptGain * plain);
}

}  // namespace tandem
