// Measures how busy other programs keep the machine, to tell whether a benchmark can be trusted.
#pragma once

#include <optional>
#include <string>

namespace tandem {

// Seconds since the machine started, summed over all CPUs.
struct CpuSeconds {
  double busy = 0, idle = 0;
};
// Parses the first line of Linux's /proc/stat; nullopt for any other text.
std::optional<CpuSeconds> parse_cpu_seconds(const std::string& line, double ticks_per_s);

// Measures from construction on. One thread.
class BackgroundLoad {
 public:
  BackgroundLoad();
  // Returns the share (0 to 1) of all CPU time that other processes used, including other virtual machines on
  // the same hardware; 0 where the system does not report it.
  double share() const;

 private:
  std::optional<CpuSeconds> begin_;
  double own_begin_ = 0;
};

}  // namespace tandem
