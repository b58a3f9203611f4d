#include "plan/memory_traffic.h"

#include <algorithm>
#include <cmath>

namespace tandem {
namespace {

constexpr double kLeast = 0.05;  // of the memory's pace, that everybody gets

}  // namespace

double MemoryTraffic::finish(double t, double n_bytes, double rate) const {
  while (n_bytes > 0) {
    double taken = 0, until = INFINITY;  // until something begins or ends
    for (const Reader& r : readers_) {
      if (r.begin <= t && t < r.end) taken += r.bytes_per_s;
      if (r.begin > t) until = std::min(until, r.begin);
      if (r.end > t) until = std::min(until, r.end);
    }
    const double pace = std::min(rate, std::max(bytes_per_s_ - taken, kLeast * bytes_per_s_));
    const double seconds = std::min(n_bytes / pace, until - t);
    if (seconds >= n_bytes / pace) return t + seconds;
    n_bytes -= seconds * pace;
    t = until;
  }
  return t;
}

void MemoryTraffic::add(double begin, double end, double n_bytes) {
  if (end > begin) readers_.push_back({begin, end, n_bytes / (end - begin)});
}

void MemoryTraffic::forget_until(double t) {
  std::erase_if(readers_, [t](const Reader& r) { return r.end <= t; });
}

}  // namespace tandem
