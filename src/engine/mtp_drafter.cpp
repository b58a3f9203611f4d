#include "engine/mtp_drafter.h"

#include <algorithm>

#include "engine/model_drafter.h"

namespace tandem {

void MtpDrafter::add_step(int64_t first, std::span<const int32_t> tokens, std::span<const float> hidden) {
  const auto n = static_cast<int64_t>(tokens.size());
  const size_t n_embd = hidden.size() / tokens.size();
  // Rows stay that join the same tokens as before.
  auto n_rows = static_cast<size_t>(std::ranges::lower_bound(positions_, first - 1) - positions_.begin());
  while (n_rows < positions_.size()) {
    const int64_t i = positions_[n_rows] + 1 - first;
    if (i >= n || session_.tokens()[n_rows] != tokens[static_cast<size_t>(i)]) break;
    ++n_rows;
  }
  cut_rows(n_rows);
  const int64_t n_kept = std::clamp<int64_t>(first - first_, 0, static_cast<int64_t>(tokens_.size()));
  tokens_.resize(first_ + n_kept == first ? static_cast<size_t>(n_kept) : 0);  // none if there is a gap
  hidden_.resize(tokens_.size() * n_embd);
  const auto n_known =
      static_cast<size_t>(positions_.empty() ? 0 : std::max<int64_t>(0, positions_.back() + 1 - first));
  if (tokens_.empty()) first_ = first + static_cast<int64_t>(n_known);
  tokens_.insert(tokens_.end(), tokens.begin() + static_cast<int64_t>(n_known), tokens.end());
  hidden_.insert(hidden_.end(), hidden.begin() + static_cast<int64_t>(n_known * n_embd), hidden.end());
  if (static_cast<int64_t>(tokens_.size()) <= session_.n_ubatch()) return;
  const std::vector<int32_t> next(tokens_.begin() + 1, tokens_.end());
  compute(next);
}

// Computes the rows whose next tokens these are.
void MtpDrafter::compute(std::span<const int32_t> next) {
  const auto n = static_cast<int64_t>(next.size());
  const int64_t n_embd = static_cast<int64_t>(hidden_.size() / tokens_.size());
  // A full context is given up as a whole: what the layer sees of a text matters less to it than to the model.
  if (session_.n_past() + n > session_.n_ctx()) cut_rows(0);
  logits_ = session_.append(next, std::span<const float>(hidden_).first(static_cast<size_t>(n * n_embd)));
  for (int64_t i = 0; i < n; ++i) positions_.push_back(first_ + i);
  tokens_.erase(tokens_.begin(), tokens_.begin() + n);
  hidden_.erase(hidden_.begin(), hidden_.begin() + n * n_embd);
  first_ += n;
}

// Leaves the first n rows, and none of guesses.
void MtpDrafter::cut_rows(size_t n) {
  session_.truncate(static_cast<int64_t>(n));
  positions_.resize(n);
}

void MtpDrafter::draft(std::span<const int32_t> text, const std::function<bool(const Guess&)>& take) {
  const auto n_held = static_cast<int64_t>(text.size()) - 1;  // by the model
  size_t n_rows = 0;
  while (n_rows < positions_.size() && positions_[n_rows] < n_held &&
         text[static_cast<size_t>(positions_[n_rows]) + 1] == session_.tokens()[n_rows]) {
    ++n_rows;
  }
  cut_rows(n_rows);
  const int64_t n_new = n_held - first_;
  if (n_new < 1 || n_new > static_cast<int64_t>(tokens_.size()) || n_new > session_.n_ctx()) return;
  const std::span<const int32_t> new_text = text.subspan(static_cast<size_t>(first_));
  if (!std::equal(new_text.begin(), new_text.end() - 1, tokens_.begin())) return;
  compute(new_text.subspan(1));
  for (;;) {
    const Guess guess = most_likely(logits_);
    if (!take(guess) || session_.n_past() >= session_.n_ctx()) return;
    const std::vector<float> hidden(session_.hidden().begin(), session_.hidden().end());
    logits_ = session_.append(std::span(&guess.id, 1), hidden);
  }
}

double MtpDrafter::prior(int confidence) const {
  return likelihood(confidence);
}

}  // namespace tandem
