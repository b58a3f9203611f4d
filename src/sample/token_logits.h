// The logits that follow a token, as a step returns them: all of them, or the largest alone while the others are still on a
// device. Those are brought when somebody asks for them. Valid until the next step of whatever returned it.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

namespace tandem {

class TokenLogits {
 public:
  using Bring = std::function<std::span<const float>()>;

  TokenLogits() = default;
  explicit TokenLogits(std::span<const float> all) : all_(all) {}
  // `top` is a row of top_k (graph/ops.h); `bring` returns all logits.
  TokenLogits(std::span<const float> top, Bring bring) : top_(top), bring_(std::move(bring)) {}

  bool empty() const { return all_.empty() && top_.empty(); }

  // How many of the largest are known without all: in the order of top_k, from the first.
  size_t n_top() const { return top_.size() / 2; }
  int32_t top_id(size_t i) const { return std::bit_cast<int32_t>(top_[i]); }
  float top_logit(size_t i) const { return top_[n_top() + i]; }

  // [n_vocab]. Throws what the device throws.
  std::span<const float> all() const { return bring_ ? bring_() : all_; }

 private:
  std::span<const float> all_, top_;
  Bring bring_;
};

}  // namespace tandem
