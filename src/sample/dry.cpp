#include "sample/dry.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tandem {

Dry::Dry(const SamplerParams& params, int32_t n_vocab, int32_t n_ctx, TokenPiece piece)
    : multiplier_(params.dry_multiplier),
      base_(params.dry_base),
      allowed_length_(params.dry_allowed_length),
      breakers_(params.dry_sequence_breakers),
      piece_(std::move(piece)) {
  if (multiplier_ == 0.0f || base_ < 1.0f) return;
  window_size_ = static_cast<size_t>(params.dry_penalty_last_n < 0 ? n_ctx : params.dry_penalty_last_n);
  if (!active()) return;
  repeat_of_.assign(n_vocab, -1);
  std::erase(breakers_, "");
  for (const std::string& breaker : breakers_) tail_bytes_ = std::max(tail_bytes_, breaker.size() - 1);
}

// Returns whether a breaker ends within `text`, starting there or in `before`.
bool Dry::ends_breaker(const std::string& before, const std::string& text) const {
  const std::string joined = before + text;
  for (const std::string& breaker : breakers_) {
    // the first start of a breaker that ends past `before`
    const size_t start = before.size() + 1 > breaker.size() ? before.size() + 1 - breaker.size() : 0;
    if (joined.find(breaker, start) != std::string::npos) return true;
  }
  return false;
}

void Dry::accept(int32_t token) {
  if (!active()) return;
  if (history_.size() >= 2 * window_size_) {
    history_.erase(history_.begin(), history_.end() - window_size_);
  }
  history_.push_back(token);
  ++since_breaker_;
  if (breakers_.empty()) return;
  const std::string text = piece_(token);
  if (ends_breaker(tail_, text)) since_breaker_ = 0;
  tail_ += text;
  if (tail_.size() > tail_bytes_) tail_.erase(0, tail_.size() - tail_bytes_);
}

// Z-algorithm over the last n tokens in reverse: match_[i] is the length of the longest common prefix of
// r = (newest, ..., oldest) and r[i..]. Reuses results inside the match that reaches furthest. O(n).
void Dry::find_repeats(size_t n) {
  const auto r = [this](size_t i) { return history_[history_.size() - 1 - i]; };
  match_.assign(n, 0);
  size_t left = 0, right = 0;  // r[left..right) equals r[0..right - left)
  for (size_t i = 1; i < n; ++i) {
    size_t length = i < right ? std::min(right - i, static_cast<size_t>(match_[i - left])) : 0;
    while (i + length < n && r(length) == r(i + length)) ++length;
    match_[i] = static_cast<int32_t>(length);
    if (i + length > right) {
      left = i;
      right = i + length;
    }
  }
}

// The token after an earlier occurrence of the newest tokens would continue the repeat.
void Dry::collect_penalties(size_t n, size_t max_repeat) {
  for (size_t i = 1; i < n; ++i) {
    const int32_t repeat = std::min(match_[i], static_cast<int32_t>(max_repeat));
    if (repeat < allowed_length_) continue;
    const int32_t next = history_[history_.size() - i];
    int32_t& longest = repeat_of_[next];
    if (longest < 0) touched_.push_back(next);
    longest = std::max(longest, repeat);
  }
}

float Dry::penalty(int32_t repeat) const {
  const double value = multiplier_ * std::pow(static_cast<double>(base_), repeat - allowed_length_);
  const double limit = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(value, -limit, limit));
}

void Dry::apply(Candidates& candidates) {
  if (!active()) return;
  const size_t n = std::min(history_.size(), window_size_);
  const size_t max_repeat = std::min(n, since_breaker_);
  if (n <= static_cast<size_t>(allowed_length_) || max_repeat < static_cast<size_t>(allowed_length_)) return;
  find_repeats(n);
  collect_penalties(n, max_repeat);
  for (const int32_t token : touched_) {
    // a token that breaks sequences by itself is never penalized
    if (!breakers_.empty() && ends_breaker("", piece_(token))) repeat_of_[token] = -1;
  }
  if (!touched_.empty()) {
    for (Candidate& c : candidates.mutable_items()) {
      const int32_t repeat = repeat_of_[c.id];
      if (repeat >= 0) c.logit -= penalty(repeat);
    }
    candidates.logits_changed();
  }
  for (const int32_t token : touched_) repeat_of_[token] = -1;
  touched_.clear();
}

void Dry::reset() {
  history_.clear();
  tail_.clear();
  since_breaker_ = 0;
}

}  // namespace tandem
