#include "collectives/collectives.h"

#include <chrono>
#include <thread>

#include "base/error.h"

namespace tandem {

// Spins at first: most waits are short.
void Collectives::wait(const Device& device, WorkQueue& queue, Event event, std::string_view what) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  while (!queue.has_reached(event)) {
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (seconds > limit_s_) {
      is_lost_ = true;
      throw_error(ErrorCode::io, "{}: {} has not answered within {} s", what, device.info().name, limit_s_);
    }
    if (seconds > 0.002) {
      check(what);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    } else {
      std::this_thread::yield();
    }
  }
  queue.wait(event);  // throws if the work has failed
}

}  // namespace tandem
