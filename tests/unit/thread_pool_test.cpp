#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "base/numa.h"

namespace tandem {
namespace {

TEST(ThreadPool, EveryItemIsClaimedOnceAndStepsAreOrdered) {
  for (int n_threads = 1; n_threads <= 5; ++n_threads) {
    ThreadPool pool(n_threads);
    for (int round = 0; round < 200; ++round) {
      const int n_active = 1 + round % n_threads;
      std::vector<int> first(97, 0), second(97, 0);
      int workers = 0;
      std::atomic<int> seen{0};
      pool.run(
          [&](Worker& w) {
            seen.fetch_add(1);
            w.for_each(97, [&](int64_t i) { first[static_cast<size_t>(i)] += 1; });
            // The barrier makes all of `first` visible to every worker.
            w.for_each(
                97, [&](int64_t i) { second[static_cast<size_t>(i)] += first[96 - static_cast<size_t>(i)]; });
            if (w.index() == 0) workers = w.count();
          },
          n_active);
      EXPECT_EQ(workers, n_active);
      EXPECT_EQ(seen.load(), n_active);
      EXPECT_EQ(first, std::vector<int>(97, 1));
      EXPECT_EQ(second, std::vector<int>(97, 1));
    }
  }
}

TEST(Numa, EveryProcessorBelongsToOneNodeAndThreadsCanBeBound) {
  const auto nodes = numa_nodes();
  ASSERT_FALSE(nodes.empty());
  std::set<int> seen;
  for (const auto& node : nodes) {
    for (int cpu : node) EXPECT_TRUE(seen.insert(cpu).second) << cpu;
  }
  EXPECT_GE(static_cast<int>(seen.size()), physical_core_count());
  EXPECT_LT(static_cast<size_t>(current_numa_node(nodes)), nodes.size());
  std::thread([&] { EXPECT_TRUE(bind_thread(nodes[0])); }).join();
}

TEST(ThreadPool, PhysicalCoresAreAtLeastOne) {
  EXPECT_GE(physical_core_count(), 1);
}

}  // namespace
}  // namespace tandem
