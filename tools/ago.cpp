#include "tools/ago.h"

#include <algorithm>
#include <ctime>

#include "base/error.h"

namespace tandem::tools {

std::string time_ago(int64_t then) {
  const int64_t seconds = std::max<int64_t>(std::time(nullptr) - then, 0);
  const auto count = [](int64_t n, const char* unit) {
    return format("{} {}{} ago", n, unit, n == 1 ? "" : "s");
  };
  if (seconds < 60) return "just now";
  if (seconds < 3600) return count(seconds / 60, "minute");
  if (seconds < 86400) return count(seconds / 3600, "hour");
  if (seconds < 30 * 86400) return count(seconds / 86400, "day");
  const std::time_t time = then;
  std::tm local{};
  localtime_r(&time, &local);
  return format("{:04}-{:02}-{:02}", local.tm_year + 1900, local.tm_mon + 1, local.tm_mday);
}

}  // namespace tandem::tools
