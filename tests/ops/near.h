// Differences of results from those of a reference, as a share of all of them.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <vector>

namespace tandem::cpu::test {

// `of_terms` is the size of sums' terms, which may cancel each other.
inline void expect_near(std::span<const float> got, std::span<const double> want, double tolerance,
                        double of_terms = 0) {
  ASSERT_EQ(got.size(), want.size());
  double error = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += std::pow(static_cast<double>(got[i]) - want[i], 2);
    size += want[i] * want[i];
  }
  EXPECT_LE(std::sqrt(error), tolerance * (std::sqrt(size) + of_terms) + 1e-12);
}

inline std::vector<double> widened(std::span<const float> x) {
  return {x.begin(), x.end()};
}

}  // namespace tandem::cpu::test
