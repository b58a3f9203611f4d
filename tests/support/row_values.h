// Values to quantize, and how far they are from what comes back.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace tandem::test {

inline std::vector<float> normal_floats(size_t n, float scale, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

// Root of the mean of weight * error^2.
inline double rms_error(const std::vector<float>& x, const std::vector<float>& y,
                        const std::vector<float>& weights = {}) {
  double sum = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double error = static_cast<double>(x[i]) - y[i];
    sum += error * error * (weights.empty() ? 1.0 : weights[i]);
  }
  return std::sqrt(sum / static_cast<double>(x.size()));
}

}  // namespace tandem::test
