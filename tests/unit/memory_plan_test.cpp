#include "graph/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace tandem {
namespace {

TEST(MemoryPlan, BuffersThatNeverMeetShareMemory) {
  const MemoryPlan plan = plan_memory({{100, 0, 1}, {100, 2, 3}, {50, 1, 2}}, 64);
  EXPECT_EQ(plan.offsets[0], plan.offsets[1]);
  EXPECT_EQ(plan.n_bytes, 128u + 64u);
}

TEST(MemoryPlan, RandomLifetimesNeverOverlapInTimeAndSpace) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 rng(seed);
  for (int round = 0; round < 50; ++round) {
    std::vector<BufferLifetime> buffers(1 + rng() % 40);
    for (BufferLifetime& b : buffers) {
      b.n_bytes = rng() % 1000;
      b.first = static_cast<int32_t>(rng() % 50);
      b.last = b.first + static_cast<int32_t>(rng() % 10);
    }
    const MemoryPlan plan = plan_memory(buffers, 64);
    size_t sum = 0;
    for (size_t i = 0; i < buffers.size(); ++i) {
      EXPECT_EQ(plan.offsets[i] % 64, 0u);
      EXPECT_LE(plan.offsets[i] + buffers[i].n_bytes, plan.n_bytes);
      sum += (buffers[i].n_bytes + 63) / 64 * 64;
      for (size_t j = 0; j < i; ++j) {
        const bool together = buffers[i].first <= buffers[j].last && buffers[j].first <= buffers[i].last;
        const bool overlap = plan.offsets[i] < plan.offsets[j] + buffers[j].n_bytes &&
                             plan.offsets[j] < plan.offsets[i] + buffers[i].n_bytes;
        EXPECT_FALSE(together && overlap) << i << " " << j;
      }
    }
    EXPECT_LE(plan.n_bytes, sum);
  }
}

}  // namespace
}  // namespace tandem
