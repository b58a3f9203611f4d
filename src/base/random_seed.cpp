#include "base/random_seed.h"

#include <sys/random.h>

#include <atomic>
#include <chrono>

namespace tandem {

uint64_t random_seed() {
  uint64_t seed = 0;
  // Up to 256 bytes arrive as a whole.
  if (getrandom(&seed, sizeof seed, 0) == static_cast<ssize_t>(sizeof seed)) return seed;
  static std::atomic<uint64_t> calls = 0;
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  return (static_cast<uint64_t>(now) + ++calls) * 0x9e3779b97f4a7c15u;
}

}  // namespace tandem
