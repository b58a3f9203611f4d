// What is page-locked when: the policy alone, on made-up addresses that nobody reads.
#include "exec/pinned_weights.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/sim_device.h"

namespace tandem {
namespace {

class PinnedPolicy : public testing::Test {
 protected:
  static constexpr size_t kMiB = size_t{1} << 20;

  static const std::byte* at(size_t n_bytes) { return reinterpret_cast<const std::byte*>((size_t{1} << 40) + n_bytes); }
  // Of 64 MiB.
  static Weight weight(size_t number) {
    return {"w", DType::F32, 1, 1, static_cast<int64_t>(16 * kMiB), at(number * 64 * kMiB)};
  }
  void step(size_t n_weights) {
    pinned_.begin_step();
    for (size_t i = 0; i < n_weights; ++i) pinned_.fetching(sim_, weight(i));
  }

  test::SimDevice sim_{{}};
  size_t n_held_ = 0;
  bool has_memory_ = true;
  PinnedWeights pinned_{[this](std::span<const std::byte> bytes) {
    n_held_ += has_memory_ ? bytes.size() : 0;
    return has_memory_;
  }};
};

TEST_F(PinnedPolicy, BeginsAfterFourFetchesAndMovesAPartInEachStep) {
  for (int i = 0; i < 4; ++i) step(40);
  EXPECT_EQ(pinned_.n_bytes(), 0u);
  for (size_t i = 1; i <= 8; ++i) {
    step(40);  // 2560 MiB: an eighth is five weights
    EXPECT_EQ(pinned_.n_bytes(), i * 320 * kMiB);
  }
  step(40);
  EXPECT_EQ(pinned_.n_bytes(), 2560 * kMiB);
  EXPECT_EQ(n_held_, 2560 * kMiB);
  EXPECT_EQ(sim_.n_pinned(), 40u);
}

TEST_F(PinnedPolicy, OfFewWeightsManyInAStep) {
  for (int i = 0; i < 5; ++i) step(4);
  EXPECT_EQ(pinned_.n_bytes(), 256 * kMiB);
}

// In chunks, over several steps.
TEST_F(PinnedPolicy, ALargeWeightStallsNoStep) {
  const Weight large{"w", DType::F32, 1, 1, static_cast<int64_t>(225 * kMiB), at(0)};  // 900 MiB
  for (size_t i = 1; i <= 8; ++i) {
    pinned_.begin_step();
    pinned_.fetching(sim_, large);
    EXPECT_EQ(pinned_.n_bytes(), i <= 4 ? 0 : std::min((i - 4) * 256 * kMiB, 900 * kMiB));
  }
  EXPECT_EQ(sim_.n_pinned(), 15u);
}

// One of its eight experts in each step.
TEST_F(PinnedPolicy, PartsOfAWeightAddUp) {
  for (int i = 0; i < 32; ++i) {
    pinned_.begin_step();
    pinned_.fetching(sim_, weight(3), 8 * kMiB);
    EXPECT_EQ(pinned_.n_bytes(), 0u);
  }
  pinned_.fetching(sim_, weight(3), 8 * kMiB);
  EXPECT_EQ(pinned_.n_bytes(), 64 * kMiB);
}

TEST_F(PinnedPolicy, StopsWhereThereIsNoMemory) {
  has_memory_ = false;
  for (int i = 0; i < 10; ++i) step(2);
  has_memory_ = true;
  for (int i = 0; i < 10; ++i) step(2);
  pinned_.fetching_pool(sim_, at(0), kMiB, kMiB);
  EXPECT_EQ(sim_.n_pinned(), 0u);
}

// A cache that grows: in chunks, each before a fetch that needs it, up to the end of its pool.
TEST_F(PinnedPolicy, PoolsGrowInChunks) {
  const size_t capacity = 40 * kMiB;
  const auto pinned_after = [&](size_t n_bytes) {
    pinned_.begin_step();
    pinned_.fetching_pool(sim_, at(0), n_bytes, capacity);
    return pinned_.n_bytes();
  };
  for (int i = 0; i < 4; ++i) EXPECT_EQ(pinned_after(kMiB), 0u);
  EXPECT_EQ(pinned_after(kMiB), 16 * kMiB);
  EXPECT_EQ(pinned_after(16 * kMiB), 16 * kMiB);
  EXPECT_EQ(pinned_after(16 * kMiB + 1), 32 * kMiB);
  EXPECT_EQ(pinned_after(33 * kMiB), capacity);
  EXPECT_EQ(pinned_after(capacity), capacity);
  EXPECT_EQ(sim_.n_pinned(), 3u);
}

}  // namespace
}  // namespace tandem
