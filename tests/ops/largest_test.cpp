// The positions of the largest numbers, by every ISA's kernels against a sort.
#include "cpu/ops/largest.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "cpu/isa.h"
#include "cpu/kernels.h"
#include "ops/row_harness.h"

namespace tandem::cpu {
namespace {

using test::Random;

std::vector<int32_t> sorted_largest(const std::vector<float>& x, size_t n) {
  std::vector<int32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(
      order, [&](int32_t a, int32_t b) { return x[static_cast<size_t>(a)] > x[static_cast<size_t>(b)]; });
  order.resize(n);
  std::ranges::sort(order);
  return order;
}

std::vector<int32_t> found_largest(Isa isa, const std::vector<float>& x, int64_t n) {
  const auto n_x = static_cast<int64_t>(x.size());
  ScratchPieces size(nullptr);
  LargestScratch(n_x, n, size);
  std::vector<std::byte> memory(size.used() + 64);
  ScratchPieces pieces(reinterpret_cast<std::byte*>(align_up(reinterpret_cast<size_t>(memory.data()), 64)));
  const LargestScratch scratch(n_x, n, pieces);
  std::vector<int32_t> found(static_cast<size_t>(n), -1);
  const int64_t n_found = largest_of(kernels(isa).sparse, x.data(), n_x, n, found.data(), scratch);
  found.resize(static_cast<size_t>(n_found));
  return found;
}

class Largest : public testing::TestWithParam<Isa> {};

// Weights of a softmax, small and large counts; more than 4096 are sampled.
TEST_P(Largest, AreThoseOfASort) {
  Random random;
  for (const int64_t n_x : {1, 7, 300, 4095, 4096, 5001, 32768}) {
    for (const int64_t n : {1, 3, 40, 1024, 2048, 8000}) {
      if (n > n_x) continue;
      std::vector<float> x = random.normals(n_x, 3.0f);
      for (float& each : x) each = std::exp(each);
      EXPECT_EQ(found_largest(GetParam(), x, n), sorted_largest(x, static_cast<size_t>(n)))
          << n << " of " << n_x;
    }
  }
}

// Samples that say nothing of the rest: all large numbers are in the sample, or none of them is.
TEST_P(Largest, OfABadSample) {
  for (const size_t offset : {0u, 5u}) {
    std::vector<float> x(20000, 0.25f);
    for (size_t i = offset; i < x.size(); i += 16) x[i] = 1.0f + static_cast<float>(i % 97);
    for (const int64_t n : {30, 1000, 3000})
      EXPECT_EQ(found_largest(GetParam(), x, n), sorted_largest(x, static_cast<size_t>(n))) << n;
  }
}

TEST_P(Largest, OfEqualOnesTheFirst) {
  Random random;
  std::vector<float> x = random.normals(9000);
  for (float& each : x) each = std::floor(std::fabs(each) * 2);
  std::fill_n(x.begin(), 64, -1.0f);  // do not count
  for (const int64_t n : {5, 500, 2000})
    EXPECT_EQ(found_largest(GetParam(), x, n), sorted_largest(x, static_cast<size_t>(n))) << n;
}

INSTANTIATE_TEST_SUITE_P(Every, Largest, testing::ValuesIn(supported_isas()),
                         [](const auto& each) { return std::string(isa_name(each.param)); });

}  // namespace
}  // namespace tandem::cpu
