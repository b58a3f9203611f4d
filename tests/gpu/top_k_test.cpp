// top_k on the GPU: bit for bit what the CPU returns, over awkward sizes and values.
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "gpu/harness.h"

namespace tandem::gpu_test {
namespace {

class GpuTopK : public GpuTest {
 protected:
  static ShapeClass tokens(int64_t n) {
    ShapeClass shape;
    shape.max_tokens = n;
    return shape;
  }

  // [n, c] with many equal values, both zeros, infinities and NaN.
  std::vector<float> awkward(int64_t n) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const float values[] = {0.0f,       -0.0f,         1.0f,           -1.0f, kInfinity,
                            -kInfinity, std::nanf(""), -std::nanf(""), 1e-40f};
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) v = values[random_.below(std::size(values))];
    return x;
  }

  void check(int64_t n, int64_t n_cols, int64_t k, std::vector<float> x, int n_runs = 1) {
    SCOPED_TRACE(format("{} rows of {}, the {} largest", n, n_cols, k));
    OpCase c(random_, tokens(n));
    c.finish(c.builder.top_k(c.activation(n_cols, std::move(x)), k));
    ASSERT_EQ(c.why_unsupported(*device_), "");
    const std::vector<float> expected = c.reference({n, 1}).values;
    for (const OpResult& result : c.run(*device_, {n, 1}, n_runs)) {
      ASSERT_EQ(result.values.size(), expected.size());
      EXPECT_EQ(std::memcmp(result.values.data(), expected.data(), expected.size() * sizeof(float)), 0);
    }
  }
};

TEST_F(GpuTopK, EqualsTheCpu) {
  for (const int64_t n_cols : {1, 2, 31, 63, 64, 65, 127, 511, 512, 513, 2047, 2049, 4096, 5001, 32003}) {
    for (const int64_t k : {1, 2, 33, 40, 63, 64}) {
      if (k > n_cols) continue;
      const int64_t n = n_cols > 4000 ? 2 : 3;
      check(n, n_cols, k, random_.normals(n * n_cols));
      if (n_cols < 6000) check(n, n_cols, k, awkward(n * n_cols));
    }
  }
}

TEST_F(GpuTopK, ColumnsInOrderAndInReverse) {
  for (const float step : {1.0f, -1.0f, 0.0f}) {
    std::vector<float> x(9000);
    for (size_t i = 0; i < x.size(); ++i) x[i] = step * static_cast<float>(i);
    check(1, 9000, 64, x);
  }
}

// As the logits of a model: a recorded graph, and more than one pass of rows.
TEST_F(GpuTopK, LargeVocabulariesAndReplayedSteps) {
  check(1, on_short_list() ? 40000 : 262144, 64, random_.normals(on_short_list() ? 40000 : 262144, 5.0f), 4);
  check(1030, 70, 3, random_.normals(1030 * 70));
}

}  // namespace
}  // namespace tandem::gpu_test
