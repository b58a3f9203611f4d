#include "sample/logit_scan.h"

#include <cmath>
#include <limits>

#include "base/error.h"

namespace tandem {
namespace {

[[noreturn]] void bad_logit(std::span<const float> logits, int64_t position) {
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] < HUGE_VALF) continue;
    throw_error(ErrorCode::numeric, "logits after {} tokens: {} for token {}, a finite number is needed",
                position, std::isnan(logits[i]) ? "NaN" : "infinity", i);
  }
  throw_error(ErrorCode::numeric, "logits after {} tokens: all are -infinity, no token can be chosen",
              position);
}

}  // namespace

void LogitScan::scan(std::span<const float> logits, int64_t position) {
  logits_ = logits;
  block_max_.resize((logits.size() + kBlock - 1) / kBlock);
  // As keys, +inf and positive NaNs are the largest, negative NaNs the smallest, below -inf.
  int32_t lowest = std::numeric_limits<int32_t>::max();
  int32_t highest = std::numeric_limits<int32_t>::min();
  for (size_t block = 0; block < block_max_.size(); ++block) {
    const float* x = logits.data() + block * kBlock;
    int32_t low = order_key(x[0]);
    int32_t high = low;
    const auto take = [&](float value) {
      const int32_t key = order_key(value);
      low = key < low ? key : low;
      high = key > high ? key : high;
    };
    if ((block + 1) * kBlock <= logits.size()) {
      for (size_t i = 0; i < kBlock; ++i) take(x[i]);
    } else {
      for (size_t i = 0; i < logits.size() - block * kBlock; ++i) take(x[i]);
    }
    block_max_[block] = high;
    lowest = std::min(lowest, low);
    highest = std::max(highest, high);
  }
  const bool bad = lowest < order_key(-HUGE_VALF) || highest >= order_key(HUGE_VALF);
  if (bad || highest == order_key(-HUGE_VALF)) bad_logit(logits, position);
}

int32_t LogitScan::argmax() const {
  const auto block =
      static_cast<size_t>(std::max_element(block_max_.begin(), block_max_.end()) - block_max_.begin());
  size_t i = block * kBlock;
  while (order_key(logits_[i]) != block_max_[block]) ++i;
  return static_cast<int32_t>(i);
}

float LogitScan::bound_of_largest(size_t k) {
  if (k == 0 || k > block_max_.size()) return -HUGE_VALF;
  // k blocks have a maximum of at least this bound
  scratch_ = block_max_;
  const auto nth = scratch_.begin() + (k - 1);
  std::nth_element(scratch_.begin(), nth, scratch_.end(), std::greater<>());
  return from_order_key(*nth);
}

}  // namespace tandem
