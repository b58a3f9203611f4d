// How busy other programs keep the machine: whether what is being measured can be believed.
#pragma once

#include <optional>
#include <string>

namespace tandem {

// Seconds of all CPUs since the machine started, together.
struct CpuSeconds {
  double busy = 0, idle = 0;
};
// Of the first line of Linux's /proc/stat, with so many ticks a second; nothing where it is something else.
std::optional<CpuSeconds> parse_cpu_seconds(const std::string& line, double ticks_per_s);

// From when it is made on. One thread.
class OthersLoad {
 public:
  OthersLoad();
  // The share of all CPUs' time, 0 to 1, that was taken by others than this process, other machines on the
  // same hardware among them; 0 where the system does not tell.
  double share() const;

 private:
  std::optional<CpuSeconds> begin_;
  double own_begin_ = 0;
};

}  // namespace tandem
