// One scan of all logits of a step: checks that they are numbers and records the maximum of every block of
// 64, so that the few largest are found later without reading most of a large vocabulary again. Reuses its
// storage. Used by one thread.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tandem {

class LogitScan {
 public:
  // Throws Error(numeric) if a logit is NaN or +inf, or if all are -inf; `position` is the number of tokens
  // before. logits [n_vocab] must stay valid while the other functions are used.
  void scan(std::span<const float> logits, int64_t position);

  // Returns the index of the largest; the lowest index on ties.
  int32_t argmax() const;

  // Returns a bound that at least k logits reach, and not many more; -inf if k is a large share of all.
  float bound_of_largest(size_t k);

  // Calls visit(index, logit) for every logit >= bound, in index order.
  template <class Visit>
  void for_each_from(float bound, Visit visit) const {
    const int32_t key = order_key(bound);
    for (size_t block = 0; block < block_max_.size(); ++block) {
      if (block_max_[block] < key) continue;
      const size_t end = std::min(logits_.size(), (block + 1) * kBlock);
      for (size_t i = block * kBlock; i < end; ++i) {
        if (logits_[i] >= bound) visit(static_cast<int32_t>(i), logits_[i]);
      }
    }
  }

 private:
  static constexpr size_t kBlock = 64;

  // Integers ordered like the floats (-0 equals 0), for loops that the compiler vectorizes.
  static int32_t order_key(float x) {
    const auto bits = std::bit_cast<int32_t>(x + 0.0f);
    return bits ^ ((bits >> 31) & 0x7fffffff);
  }
  static float from_order_key(int32_t key) { return std::bit_cast<float>(key ^ ((key >> 31) & 0x7fffffff)); }

  std::span<const float> logits_;
  std::vector<int32_t> block_max_;  // order keys
  std::vector<int32_t> scratch_;
};

}  // namespace tandem
