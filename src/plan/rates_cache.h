// What was measured on this machine, so that it need not be measured again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "plan/cost.h"

namespace tandem {

// Whether others kept the machine busy meanwhile: such a measurement is believed for minutes only.
enum class Measured { quietly, disturbed };

// Measurements of this machine, a line each in a file that several processes may use. A file that cannot be
// read or written, or a line that makes no sense, is as if nothing had been measured.
class RatesCache {
 public:
  // The usual place: tandem/rates under $XDG_CACHE_HOME, or under .cache in the home directory; empty: there
  // is none.
  static std::string usual_path();
  explicit RatesCache(std::string path) : path_(std::move(path)) {}

  std::optional<DeviceRates> find(const std::string& device) const;
  void remember(const std::string& device, const DeviceRates& rates,
                Measured measured = Measured::quietly) const;

 private:
  std::string path_;
};

}  // namespace tandem
