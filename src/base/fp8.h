// FP8 with four exponent and three mantissa bits (E4M3FN of arXiv:2209.05433): no infinities, and NaN only with
// all of these bits set. Header only; any thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace tandem {

inline float fp8_e4m3_to_fp32(uint8_t bits) {
  constexpr int kBias = 7, kMantissaBits = 3;
  const int exponent = bits >> kMantissaBits & 15, mantissa = bits & 7;
  if ((bits & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  const float x = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), 1 - kBias - kMantissaBits)
                                : std::ldexp(static_cast<float>(mantissa + 8), exponent - kBias - kMantissaBits);
  return bits & 0x80 ? -x : x;
}

}  // namespace tandem
