// Weights that no file should hold, counted: NaN, infinite, or too large for the dtype they are to become.
// Counted by many threads at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "gguf/dtype.h"

namespace tandem::tools {

class WeightDefects {
 public:
  // x: n weights that become `target`.
  void count(const float* x, int64_t n, DType target);

  bool any() const { return n_nan_ != 0 || n_infinite_ != 0 || n_too_large_ != 0; }
  // "2 NaN, 1 too large for F16", with `advice` behind the last.
  std::string text(const std::string& advice = "") const;

 private:
  std::atomic<int64_t> n_nan_{0}, n_infinite_{0}, n_too_large_{0};
};

}  // namespace tandem::tools
