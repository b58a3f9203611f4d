#include "base/background_load.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace tandem {
namespace {

std::optional<CpuSeconds> cpu_seconds() {
  std::ifstream file("/proc/stat");
  std::string line;
  std::getline(file, line);
  return parse_cpu_seconds(line, static_cast<double>(sysconf(_SC_CLK_TCK)));
}

double own_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

// Format: "cpu user nice system idle iowait irq softirq steal guest guest_nice"; user and nice include guest.
std::optional<CpuSeconds> parse_cpu_seconds(const std::string& line, double ticks_per_s) {
  std::istringstream in(line);
  std::string name;
  double user, nice, system, idle, iowait, irq, softirq, steal;
  if (!(in >> name >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal) || name != "cpu")
    return std::nullopt;
  return CpuSeconds{(user + nice + system + irq + softirq + steal) / ticks_per_s,
                    (idle + iowait) / ticks_per_s};
}

BackgroundLoad::BackgroundLoad() : begin_(cpu_seconds()), own_begin_(own_seconds()) {}

double BackgroundLoad::share() const {
  const std::optional<CpuSeconds> now = cpu_seconds();
  if (!begin_ || !now) return 0;
  const double busy = now->busy - begin_->busy, idle = now->idle - begin_->idle;
  if (busy + idle <= 0) return 0;
  return std::clamp((busy - (own_seconds() - own_begin_)) / (busy + idle), 0.0, 1.0);
}

}  // namespace tandem
