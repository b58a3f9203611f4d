#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <random>
#include <thread>

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

// More threads than processors, loops of all lengths, and more of them than are numbered.
TEST(ThreadPool, ManyWorkersDivideLoopsOfAnyLength) {
  ThreadPool pool(40);
  std::mt19937 rng(std::random_device{}());
  for (int round = 0; round < 30; ++round) {
    const int n_active = 2 + static_cast<int>(rng() % 39);
    std::vector<std::vector<int>> done;
    for (int i = 0; i < 20; ++i) done.emplace_back(rng() % 300, 0);
    pool.run(
        [&](Worker& w) {
          for (std::vector<int>& loop : done) {
            w.for_each(static_cast<int64_t>(loop.size()),
                       [&](int64_t i) { loop[static_cast<size_t>(i)] += 1; });
          }
        },
        n_active);
    for (const std::vector<int>& loop : done) ASSERT_EQ(loop, std::vector<int>(loop.size(), 1)) << n_active;
  }
  ThreadPool two(2);
  std::vector<int> sums(5, 0);
  for (int round = 0; round < 70; ++round) {
    two.run([&](Worker& w) {
      for (int loop = 0; loop < 1000; ++loop) {
        w.for_each(5, [&](int64_t i) { sums[static_cast<size_t>(i)] += 1; });
      }
    });
  }
  EXPECT_EQ(sums, std::vector<int>(5, 70000));
  std::vector<uint8_t> many(5'000'000, 0);  // several at a time
  two.run([&](Worker& w) {
    w.for_each(static_cast<int64_t>(many.size()), [&](int64_t i) { many[static_cast<size_t>(i)] += 1; });
  });
  EXPECT_EQ(std::ranges::count(many, 1), static_cast<int64_t>(many.size()));
}

// A worker that is held up gets help; one that is not keeps its items.
TEST(ThreadPool, ItemsOfASlowWorkerAreTaken) {
  ThreadPool pool(3);
  std::vector<int> worker_of(30, -1);
  std::atomic<int> n_done{0};
  pool.run([&](Worker& w) {
    w.for_each(30, [&](int64_t i) {
      worker_of[static_cast<size_t>(i)] = w.index();
      ++n_done;
      if (i == 0) {
        while (n_done < 30) std::this_thread::yield();  // all others are done by others
      }
    });
  });
  if (worker_of[0] == 0) {  // unless it came so late that others had done all
    EXPECT_EQ(std::ranges::count(worker_of, 0), 1);
  }
  EXPECT_GE(pool.n_stolen(), 9u);
}

TEST(ThreadPool, AWorkerAloneDoesAllAndWaitsForNobody) {
  ThreadPool pool(2);
  std::vector<int> done(50, 0);
  pool.run([&](Worker& w) {
    w.for_each(1, [&](int64_t) {
      Worker alone = w.alone();
      alone.for_each(50, [&](int64_t i) { done[static_cast<size_t>(i)] += 1; });
      alone.barrier();
    });
  });
  EXPECT_EQ(done, std::vector<int>(50, 1));
  EXPECT_EQ(pool.n_barriers(), 2u);  // of the loop, and at the end of the run
}

// All workers are put on one processor, may leave it, and are not left there by their barriers.
TEST(ThreadPool, WorkersDoNotShareAProcessor) {
  const std::vector<int>& cpus = process_cpus();
  if (cpus.size() < 2) GTEST_SKIP() << "one processor";
  ThreadPool pool(2);
  int n_parted = 0;
  constexpr int kTries = 20;
  for (int i = 0; i < kTries; ++i) {
    const int shared = cpus[static_cast<size_t>(i) % cpus.size()];
    std::atomic<int> on[2];
    std::atomic<int> n_bound{0};
    const uint64_t n_moved = pool.n_moved();
    pool.run([&](Worker& w) {
      ASSERT_TRUE(bind_thread({shared}));
      ++n_bound;
      while (n_bound < 2) std::this_thread::yield();
      ASSERT_TRUE(bind_thread(cpus));
      for (int step = 0; step < 50; ++step) w.barrier();
      on[w.index()] = sched_getcpu();
      cpu_set_t allowed;
      ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
      EXPECT_EQ(CPU_COUNT(&allowed), static_cast<int>(cpus.size()));
    });
    n_parted += on[0] != on[1] || pool.n_moved() > n_moved;
  }
  EXPECT_GE(n_parted, kTries / 2);  // a busy system puts some together again
  EXPECT_GE(pool.n_moved(), 1u);
}

TEST(ThreadPool, PhysicalCoresAreAtLeastOne) {
  EXPECT_GE(physical_core_count(), 1);
}

}  // namespace
}  // namespace tandem
