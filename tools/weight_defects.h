// Counts defective weights: NaN, infinite, or too large for the target dtype. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "gguf/dtype.h"

namespace tandem::tools {

class WeightDefects {
 public:
  // x[n]: weights to be stored as `target`.
  void count(const float* x, int64_t n, DType target);

  bool any() const { return n_nan_ != 0 || n_infinite_ != 0 || n_too_large_ != 0; }
  // "2 NaN, 1 too large for F16"; `advice` follows a "too large" count.
  std::string text(const std::string& advice = "") const;

 private:
  std::atomic<int64_t> n_nan_{0}, n_infinite_{0}, n_too_large_{0};
};

}  // namespace tandem::tools
