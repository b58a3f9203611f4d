#include "plan/rates_cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <sstream>

#include "base/error.h"
#include "base/log.h"
#include "base/text_input.h"

namespace tandem {

std::string RatesCache::usual_path() {
  const auto set = [](const char* name) {
    const char* value = std::getenv(name);
    return value && *value ? std::string(value) : std::string();
  };
  if (const std::string cache = set("XDG_CACHE_HOME"); !cache.empty()) return cache + "/tandem/rates";
  const std::string home = set("HOME");
  return home.empty() ? "" : home + "/.cache/tandem/rates";
}

namespace {

constexpr size_t kMaxBytes = size_t{4} << 20;

// How long a measurement is believed: drivers and machines change, and a disturbed one is only better than
// none.
constexpr int64_t kHoldsS = 30 * 24 * 3600, kDisturbedHoldsS = 600;

// The fields of a line, in order; the first ones must be positive.
constexpr double DeviceRates::*kFields[] = {&DeviceRates::read_bytes_per_s,
                                            &DeviceRates::ops_per_s,
                                            &DeviceRates::bus_bytes_per_s,
                                            &DeviceRates::stage_s,
                                            &DeviceRates::node_s,
                                            &DeviceRates::memory_bytes_per_s,
                                            &DeviceRates::float_ops_per_s,
                                            &DeviceRates::attention_ops_per_s,
                                            &DeviceRates::single_attention_ops_per_s,
                                            &DeviceRates::peer_bytes_per_s,
                                            &DeviceRates::peer_s,
                                            &DeviceRates::pinned_bytes_per_s};
constexpr size_t kPositive = 3;

// "until read ops ...<tab>host<tab>device"
std::string key_of(const std::string& device) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return std::string(host) + "\t" + printable(device, 400);
}

// Of a line that still holds.
std::optional<DeviceRates> parse_rates(const std::string& text) {
  std::istringstream in(text);
  int64_t until = 0;
  if (!(in >> until) || until < std::time(nullptr) || until > std::time(nullptr) + kHoldsS)
    return std::nullopt;
  DeviceRates rates;
  for (size_t i = 0; i < std::size(kFields); ++i) {
    double& value = rates.*kFields[i];
    if (!(in >> value) || !std::isfinite(value) || value < 0 || (value == 0 && i < kPositive))
      return std::nullopt;
  }
  return (in >> std::ws).eof() ? std::optional(rates) : std::nullopt;
}

}  // namespace

std::optional<DeviceRates> RatesCache::find(const std::string& device) const {
  if (path_.empty()) return std::nullopt;
  std::istringstream file(read_optional_file(path_, kMaxBytes));
  const std::string key = key_of(device);
  std::optional<DeviceRates> found;
  for (std::string line; std::getline(file, line);) {
    const size_t tab = line.find('\t');
    if (tab == std::string::npos || line.compare(tab + 1, std::string::npos, key) != 0) continue;
    // The last one counts that can be read: another version of the program may write others.
    if (const auto rates = parse_rates(line.substr(0, tab))) found = rates;
  }
  return found;
}

// One short append: processes that do it at the same time do not mix their lines.
void RatesCache::remember(const std::string& device, const DeviceRates& rates, Measured measured) const {
  if (path_.empty()) return;
  for (size_t slash = path_.find('/', 1); slash != std::string::npos; slash = path_.find('/', slash + 1)) {
    mkdir(path_.substr(0, slash).c_str(), 0777);
  }
  const int64_t holds = measured == Measured::disturbed ? kDisturbedHoldsS : kHoldsS;
  std::string line = std::to_string(std::time(nullptr) + holds);
  for (const auto field : kFields) line += format(" {:.6g}", rates.*field);
  line += "\t" + key_of(device) + "\n";
  FILE* file = std::fopen(path_.c_str(), "ae");
  const bool written = file && std::fwrite(line.data(), 1, line.size(), file) == line.size();
  if (!(file && std::fclose(file) == 0 && written)) {
    log_verbose("{}: cannot be written, speeds will be measured again next time", printable(path_, 400));
  }
}

}  // namespace tandem
