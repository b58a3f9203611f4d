#include "tools/weight_defects.h"

#include <bit>
#include <cmath>

namespace tandem::tools {

namespace {

constexpr float kTooLargeForHalf = 65520.0f;  // rounds to infinity

}  // namespace

void WeightDefects::count(const float* x, int64_t n, DType target) {
  const uint32_t limit = std::bit_cast<uint32_t>(target == DType::F16 ? kTooLargeForHalf : INFINITY);
  int64_t n_suspect = 0;
  for (int64_t i = 0; i < n; ++i) n_suspect += (std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu) >= limit;
  if (n_suspect == 0) return;
  for (int64_t i = 0; i < n; ++i) {
    if (std::isnan(x[i])) {
      ++n_nan_;
    } else if (std::isinf(x[i])) {
      ++n_infinite_;
    } else if (target == DType::F16 && std::fabs(x[i]) >= kTooLargeForHalf) {
      ++n_too_large_;
    }
  }
}

std::string WeightDefects::text(const std::string& advice) const {
  std::string found;
  const auto add = [&](int64_t n, const std::string& what) {
    if (n > 0) found += (found.empty() ? "" : ", ") + std::to_string(n) + what;
  };
  add(n_nan_, " NaN");
  add(n_infinite_, " infinite");
  add(n_too_large_, " too large for F16" + advice);
  return found;
}

}  // namespace tandem::tools
