// The Hadamard rotation against the matrix's definition in double precision, the same bits on every ISA, and as an op.
#include "graph/hadamard.h"

#include <bit>
#include <cmath>

#include "ops/row_harness.h"

namespace tandem::cpu {
namespace {

using test::OpBench;
using test::Random;

TEST(Hadamard, WidthsDivideTheHead) {
  EXPECT_EQ(hadamard_width(128), 128);
  EXPECT_EQ(hadamard_width(96), 32);
  EXPECT_EQ(hadamard_width(80), 16);
  EXPECT_EQ(hadamard_width(16), 16);
  EXPECT_EQ(hadamard_width(1024), 512);
  EXPECT_EQ(hadamard_width(192), 64);
  for (const int64_t too_odd : {0, 1, 8, 24, 72, 100}) EXPECT_EQ(hadamard_width(too_odd), 0) << too_odd;
}

// Element (i, j) is -1 to the number of bits that i and j share, over the square root of the width.
std::vector<double> times_matrix(const std::vector<float>& x, int64_t width) {
  std::vector<double> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t run = i / static_cast<size_t>(width) * static_cast<size_t>(width);
    for (size_t j = 0; j < static_cast<size_t>(width); ++j) {
      const double sign = std::popcount((i - run) & j) % 2 == 0 ? 1.0 : -1.0;
      y[i] += sign * static_cast<double>(x[run + j]) / std::sqrt(static_cast<double>(width));
    }
  }
  return y;
}

TEST(Hadamard, EveryIsaGivesTheProductWithTheMatrix) {
  Random random;
  for (int64_t width = kMinHadamard; width <= kMaxHadamard; width *= 2) {
    for (const int64_t n_runs : {1, 3}) {
      const std::vector<float> x = random.normals(width * n_runs);
      const std::vector<double> wanted = times_matrix(x, width);
      std::vector<float> reference = x;
      hadamard(reference.data(), width, width * n_runs);
      for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(reference[i], wanted[i], 4e-6) << width << " " << i;
      for (const Isa isa : supported_isas()) {
        std::vector<float> guarded(x.size() + 2, 9.0f);  // not aligned
        std::ranges::copy(x, guarded.begin() + 1);
        test::rows_of(isa).hadamard(guarded.data() + 1, width, width * n_runs);
        EXPECT_EQ(std::vector<float>(guarded.begin() + 1, guarded.end() - 1), reference)
            << isa_name(isa) << " " << width;
        EXPECT_EQ(guarded.front(), 9.0f);
        EXPECT_EQ(guarded.back(), 9.0f);
      }
    }
  }
}

TEST(Hadamard, IsItsOwnInverseAndKeepsProducts) {
  Random random;
  const std::vector<float> q = random.normals(128), k = random.normals(128);
  std::vector<float> a = q, b = k;
  hadamard(a.data(), 128, 128);
  hadamard(b.data(), 128, 128);
  double before = 0, after = 0;
  for (size_t i = 0; i < q.size(); ++i) {
    before += static_cast<double>(q[i]) * static_cast<double>(k[i]);
    after += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  EXPECT_NEAR(before, after, 1e-4);
  hadamard(a.data(), 128, 128);
  for (size_t i = 0; i < q.size(); ++i) EXPECT_NEAR(a[i], q[i], 2e-6);
}

TEST(Hadamard, TheOpRotatesEveryRowInPlace) {
  Random random;
  struct Size {
    int64_t n_cols, width, n;
  };
  for (const Size& s : {Size{4 * 128, 128, 1}, {3 * 96, 32, 70}, {80, 16, 5}, {2 * 256, 256, 300}}) {
    for (const Isa isa : supported_isas()) {
      ShapeClass shape;
      shape.max_tokens = s.n;
      OpBench bench(shape);
      const TensorId x = bench.activation(s.n_cols);
      const size_t node = 1;
      const TensorId y = bench.builder.hadamard(x, s.width);
      bench.finish(y);
      ASSERT_EQ(bench.data(x), bench.data(y));
      std::vector<float> wanted = random.normals(s.n * s.n_cols);
      for (const int n_threads : {1, 3}) {
        std::ranges::copy(wanted, bench.data(x));
        bench.run(isa, {s.n, 1}, n_threads, node);
        std::vector<float> expected = wanted;
        hadamard(expected.data(), s.width, s.n * s.n_cols);
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), bench.data(y)))
            << isa_name(isa) << " " << s.n_cols;
      }
    }
  }
}

}  // namespace
}  // namespace tandem::cpu
