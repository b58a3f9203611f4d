// Waits for a GPU (ggml-cuda/timed_wait.h), by a clock of its own: a look takes a microsecond.
#include "ggml-cuda/timed_wait.h"

#include <gtest/gtest.h>

namespace tandem::cuda {
namespace {

using std::chrono::microseconds;

struct TestTime {
  using Point = std::chrono::steady_clock::time_point;
  static inline Point time{};
  static Point now() { return time; }
  static void sleep_until(Point then) { time = std::max(time, then); }
};

struct Wait {
  int n_looks = 0;
  bool slept = false;       // until the end
  microseconds late{};      // that it returned after the end
};

class TimedWaits : public ::testing::Test {
 protected:
  Wait wait(microseconds length) {
    Wait result;
    const TestTime::Point end = TestTime::time + length;
    waits_.wait(
        [&] {
          ++result.n_looks;
          TestTime::time += microseconds(1);
          return TestTime::time >= end;
        },
        [&] {
          result.slept = true;
          TestTime::time = std::max(TestTime::time, end + microseconds(70));  // the time of waking up
        });
    EXPECT_GE(TestTime::time, end);
    result.late = std::chrono::duration_cast<microseconds>(TestTime::time - end);
    return result;
  }

  TimedWait<TestTime> waits_;
};

TEST_F(TimedWaits, ShortOnesAreAwake) {
  for (int i = 0; i < 40; ++i) {
    const Wait w = wait(microseconds(80));
    EXPECT_FALSE(w.slept);
    EXPECT_EQ(w.late.count(), 0);
  }
}

TEST_F(TimedWaits, LikeTheLastEndInTimeAndSleepBefore) {
  for (int i = 0; i < 40; ++i) {
    const Wait w = wait(microseconds(2500 + i % 3 * 50));
    if (i < 16) {
      EXPECT_TRUE(w.slept);
    } else {
      EXPECT_FALSE(w.slept);
      EXPECT_LE(w.late.count(), 1);
      EXPECT_LT(w.n_looks, 700);
    }
  }
}

TEST_F(TimedWaits, NoneIsSleptThrough) {
  for (int i = 0; i < 100; ++i) {
    const Wait w = wait(microseconds(i % 4 == 0 ? 400 : 3000));
    if (i >= 16 && i % 4 == 0) {
      EXPECT_FALSE(w.slept);
      EXPECT_LE(w.late.count(), 1);
    }
    EXPECT_LE(w.late.count(), 70);
  }
}

TEST_F(TimedWaits, LongerThanExpectedSleepsUntilTheEnd) {
  for (int i = 0; i < 16; ++i) wait(microseconds(1000));
  const Wait w = wait(microseconds(500000));
  EXPECT_TRUE(w.slept);
  EXPECT_LT(w.n_looks, 600);
}

TEST_F(TimedWaits, LongOnesAreAsleep) {
  for (int i = 0; i < 40; ++i) {
    const Wait w = wait(microseconds(90000));
    EXPECT_TRUE(w.slept);
    EXPECT_LE(w.n_looks, 101);
  }
}

}  // namespace
}  // namespace tandem::cuda
