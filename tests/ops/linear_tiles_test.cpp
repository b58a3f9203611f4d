// The products of AMX tiles at awkward sizes and any number of tokens, also where the table chooses other kernels.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "support/dtypes.h"
#include "support/linear_problem.h"

namespace tandem::cpu {
namespace {

using test::Extra;
using test::Problem;

const LinearKernels& tiles() {
  return avx512_amx::linear_kernels();
}

std::vector<DType> tile_dtypes() {
  std::vector<DType> dtypes;
  for (DType dtype : tandem::test::quantizable_dtypes()) {
    if (tiles().has_kernel(dtype)) dtypes.push_back(dtype);
  }
  return dtypes;
}

class LinearTiles : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (supported_isas().back() != Isa::avx512_amx) GTEST_SKIP() << "this machine has no AMX";
  }
  DType dtype() const { return GetParam(); }
  int64_t block() const { return dtype_info(dtype()).block_elements; }
  void expect_product(int64_t n, int64_t m, int64_t k, Extra extra) {
    SCOPED_TRACE(testing::Message() << "n " << n << " m " << m << " k " << k);
    const Problem p(dtype(), n, m, k, rng);
    const auto [error, where] = test::worst_error(
        test::multiply(tiles(), p, extra), test::product_of_floats(p, extra), test::magnitudes(p, extra));
    EXPECT_LE(error, test::tile_tolerance(dtype())) << "at " << where;
  }
  std::mt19937 rng{[] {
    const uint32_t seed = std::random_device{}();
    printf("seed %u\n", seed);
    return seed;
  }()};
};

TEST_P(LinearTiles, EveryNumberOfRowsAndTokens) {
  const Extra extras[] = {Extra::none, Extra::bias, Extra::residual, Extra::both, Extra::residual_in_place};
  int which = 0;
  for (int64_t m = 1; m <= 70; ++m) {
    for (int64_t n : {1, 15, 16, 17, 31, 32, 33, 100}) {
      const bool in_full = m % 16 < 2 || m % 16 == 15 || n == 33;
      if (in_full)
        expect_product(n, m, block() == 1 ? 1 + static_cast<int64_t>(rng() % 100) : block(),
                       extras[which++ % 5]);
    }
  }
}

// Several blocks of columns, and a last one that is not whole.
TEST_P(LinearTiles, AnyNumberOfColumns) {
  const std::vector<int64_t> ks = block() == 1
                                      ? std::vector<int64_t>{1, 31, 32, 33, 255, 256, 257, 519, 800}
                                      : std::vector<int64_t>{block(), 3 * block(), 7 * block(), 9 * block()};
  for (int64_t k : ks) {
    for (int64_t n : {7, 32, 49}) expect_product(n, 40, k, Extra::both);
  }
}

// More tokens and rows than are multiplied at once.
TEST_P(LinearTiles, SeveralGroupsOfRowsAndTokens) {
  const int64_t k = block() == 1 ? 290 : std::max<int64_t>(block(), 288 / block() * block());
  expect_product(523, 33, k, Extra::both);
  expect_product(40, 301, k, Extra::both);
  expect_product(513, 257, k, Extra::residual_in_place);
}

TEST_P(LinearTiles, ResultsDoNotDependOnDivision) {
  const Problem p(dtype(), 530, 320, block() == 1 ? 300 : 2 * block(), rng);
  const std::vector<float> whole = test::multiply(tiles(), p, Extra::both);
  for (int64_t rows : {32, 64, 256}) {
    const std::vector<float> parts = test::multiply(tiles(), p, Extra::both, rows);
    EXPECT_EQ(std::memcmp(whole.data(), parts.data(), whole.size() * 4), 0) << rows << " rows at once";
  }
}

// A factor's rounding to bf16 is 0.17% on average. Halves are multiplied without loss, so only activations count.
TEST_P(LinearTiles, TheErrorIsThatOfBf16) {
  const Problem p(dtype(), 48, 64, block() == 1 ? 1024 : std::max<int64_t>(1024, block()), rng);
  const std::vector<float> got = test::multiply(tiles(), p), want = test::product_of_floats(p);
  std::vector<float> w(static_cast<size_t>(p.k));
  double errors = 0, squares = 0;  // of the sums; of their terms
  for (int64_t r = 0; r < p.m; ++r) {
    dequantize_row(p.dtype, p.w.data() + row_bytes(p.dtype, p.k) * static_cast<size_t>(r), w.data(), p.k);
    for (int64_t t = 0; t < p.n; ++t) {
      const size_t at = static_cast<size_t>(t * p.m + r);
      errors += std::pow(static_cast<double>(got[at]) - want[at], 2);
      for (int64_t i = 0; i < p.k; ++i)
        squares += std::pow(
            static_cast<double>(w[static_cast<size_t>(i)]) * p.x[static_cast<size_t>(t * p.k + i)], 2);
    }
  }
  const double error = std::sqrt(errors / squares);
  const bool exact = dtype() == DType::F16 || dtype() == DType::BF16;
  RecordProperty("relative_rms_error", std::to_string(error));
  EXPECT_LT(error, exact ? 0.0020 : 0.0028);
  EXPECT_GT(error, 0.0010);  // else the comparison is wrong
}

// Halves with few bits have no low plane, which is left out: in all strips of rows, in some, and in some blocks of columns.
// Activations that bf16 has too, so that nothing is rounded.
TEST(LinearTilesOfHalves, LowPlanesAreLeftOutWhereTheyAreZero) {
  if (supported_isas().back() != Isa::avx512_amx) GTEST_SKIP() << "this machine has no AMX";
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 rng(seed);
  for (const int64_t full_row : {-1, 0, 20, 47, 69}) {
    Problem p(DType::F16, 40, 70, 600, rng);
    for (float& x : p.x) x = bf16_to_fp32(fp32_to_bf16(x));
    auto* halves = reinterpret_cast<fp16_t*>(p.w.data());
    for (int64_t i = 0; i < p.m * p.k; ++i) {
      const bool full = i / p.k == full_row && i % p.k >= 300;
      if (!full) halves[i] = fp32_to_fp16(bf16_to_fp32(fp32_to_bf16(fp16_to_fp32(halves[i]))));
    }
    const auto [error, where] =
        test::worst_error(test::multiply(tiles(), p, Extra::both), test::product_of_floats(p, Extra::both),
                          test::magnitudes(p, Extra::both));
    EXPECT_LE(error, 2e-6) << "at " << where << ", all bits in row " << full_row;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, LinearTiles, ::testing::ValuesIn(tile_dtypes()),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

}  // namespace
}  // namespace tandem::cpu
