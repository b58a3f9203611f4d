// Waits that end when what is waited for is there, without a core of their own. A thread that the driver wakes up runs again 50 to
// 100 us later, a twentieth of a token's time on a fast GPU; but steps take as long as those before them, so a wait sleeps for
// most of that time and then looks.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

namespace tandem::cuda {

// One thread.
class TimedWait {
 public:
  // Returns when is_over() is true. sleep(): returns then too, after a sleep; called where no time is expected.
  template <class IsOver, class Sleep>
  void wait(IsOver&& is_over, Sleep&& sleep) {
    const Clock::time_point begin = Clock::now();
    bool over = look(is_over, begin + kShort);
    // The shortest, as waits for several parts of a step take turns: none is slept through.
    const Duration expected = *std::min_element(last_.begin(), last_.end());
    const Duration margin = kShort + expected / 16;
    if (!over && expected > 2 * margin && expected <= kLong) {
      std::this_thread::sleep_until(begin + expected - margin);
      over = look(is_over, begin + expected + margin);
    }
    if (!over) sleep();
    if (const Duration took = Clock::now() - begin; took > kShort) last_[next_++ % last_.size()] = took;
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Duration = Clock::duration;
  static constexpr Duration kShort = std::chrono::microseconds(100), kLong = std::chrono::milliseconds(20);

  template <class IsOver>
  static bool look(IsOver& is_over, Clock::time_point until) {
    bool over = is_over();
    while (!over && Clock::now() < until) over = is_over();
    return over;
  }

  std::array<Duration, 16> last_{};
  size_t next_ = 0;
};

}  // namespace tandem::cuda
