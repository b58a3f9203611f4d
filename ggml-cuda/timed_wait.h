// Waits that end when what is waited for is there, without a core of their own. A thread that the driver wakes up runs again 50 to
// 100 us later, a twentieth of a token's time on a fast GPU; but steps take as long as those before them, so a wait sleeps for
// most of that time and then looks.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

namespace tandem::cuda {

struct SteadyTime {
  using Point = std::chrono::steady_clock::time_point;
  static Point now() { return std::chrono::steady_clock::now(); }
  static void sleep_until(Point then) { std::this_thread::sleep_until(then); }
};

// One thread. Time: as SteadyTime.
template <class Time = SteadyTime>
class TimedWait {
 public:
  // Returns when is_over() is true. sleep(): returns then too, after a sleep; called where it is not over when it should be.
  template <class IsOver, class Sleep>
  void wait(IsOver&& is_over, Sleep&& sleep) {
    const Point begin = Time::now();
    bool over = look(is_over, begin + kShort);
    // The shortest, as waits for several parts of a step take turns: none is slept through.
    const Duration expected = *std::min_element(last_.begin(), last_.end());
    const Duration margin = kShort + expected / 16;
    if (!over && expected > 2 * margin && expected <= kLong) {
      Time::sleep_until(begin + expected - margin);
      over = look(is_over, begin + expected + margin);
    }
    if (!over) sleep();
    if (const Duration took = Time::now() - begin; took > kShort) last_[next_++ % last_.size()] = took;
  }

 private:
  using Point = typename Time::Point;
  using Duration = typename Point::duration;
  static constexpr Duration kShort = std::chrono::microseconds(100), kLong = std::chrono::milliseconds(20);

  template <class IsOver>
  static bool look(IsOver& is_over, Point until) {
    bool over = is_over();
    while (!over && Time::now() < until) over = is_over();
    return over;
  }

  std::array<Duration, 16> last_{};
  size_t next_ = 0;
};

}  // namespace tandem::cuda
