// top_k on the CPU against a sort, and the order of its keys.
#include "graph/top_k.h"

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/row_harness.h"

namespace tandem::cpu::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

uint64_t key(float value, uint32_t column) {
  return top_key(std::bit_cast<uint32_t>(value), column);
}

TEST(TopK, KeysAreInTheOrderOfTheirValues) {
  const float values[] = {kInfinity, 1e38f, 2.0f, 1.0f, 1e-40f, 0.0f, -1e-40f, -1.0f, -1e38f, -kInfinity};
  for (size_t i = 1; i < std::size(values); ++i) {
    EXPECT_GT(key(values[i - 1], 1000), key(values[i], 0)) << i;
    EXPECT_EQ(std::bit_cast<float>(bits_of_key(key(values[i], 7))), values[i]);
    EXPECT_EQ(column_of_key(key(values[i], 7)), 7u);
  }
  EXPECT_EQ(key(-0.0f, 3), key(0.0f, 3));
  EXPECT_GT(key(1.0f, 3), key(1.0f, 4));
  for (const float nan : {std::nanf(""), -std::nanf("")}) {
    EXPECT_GT(key(nan, 1000), key(kInfinity, 0));
    EXPECT_TRUE(std::isnan(std::bit_cast<float>(bits_of_key(key(nan, 0)))));
  }
  EXPECT_GT(key(-kInfinity, 0xffffffffu), 0u);
}

TEST(TopK, EqualsASort) {
  Random random;
  for (const int64_t n_cols : {1, 2, 63, 64, 65, 200, 5000}) {
    for (const int64_t k : {1, 2, 40, 64}) {
      if (k > n_cols) continue;
      for (const bool few_values : {false, true}) {
        constexpr int64_t n = 5;
        SCOPED_TRACE(std::to_string(n_cols) + " columns, " + std::to_string(k));
        ShapeClass shape;
        shape.max_tokens = n;
        OpBench bench(shape);
        const TensorId x = bench.activation(n_cols), y = bench.builder.top_k(x, k);
        bench.finish(y);
        std::vector<float> values = random.normals(n * n_cols);
        for (float& v : values) v = few_values ? static_cast<float>(random.below(4)) - 1.0f : v;
        std::copy(values.begin(), values.end(), bench.data(x));
        bench.run(best_isa(), {n, 1}, 2);
        for (int64_t row = 0; row < n; ++row) {
          const float* from = values.data() + row * n_cols;
          std::vector<int32_t> order(static_cast<size_t>(n_cols));
          std::iota(order.begin(), order.end(), 0);
          std::stable_sort(order.begin(), order.end(),
                           [&](int32_t a, int32_t b) { return from[a] > from[b]; });
          const float* to = bench.data(y) + row * 2 * k;
          for (int64_t i = 0; i < k; ++i) {
            ASSERT_EQ(std::bit_cast<int32_t>(to[i]), order[static_cast<size_t>(i)]);
            ASSERT_EQ(to[k + i], from[order[static_cast<size_t>(i)]]);
          }
        }
      }
    }
  }
}

TEST(TopK, WhatIsNoNumberComesFirst) {
  ShapeClass shape;
  OpBench bench(shape);
  const TensorId x = bench.activation(100), y = bench.builder.top_k(x, 3);
  bench.finish(y);
  std::fill_n(bench.data(x), 100, 1.0f);
  bench.data(x)[90] = std::nanf("");
  bench.data(x)[20] = kInfinity;
  bench.run(best_isa(), {1, 1});
  const float* to = bench.data(y);
  EXPECT_EQ(std::bit_cast<int32_t>(to[0]), 90);
  EXPECT_EQ(std::bit_cast<int32_t>(to[1]), 20);
  EXPECT_EQ(std::bit_cast<int32_t>(to[2]), 0);
  EXPECT_FALSE(to[3] < kInfinity);
}

}  // namespace
}  // namespace tandem::cpu::test
