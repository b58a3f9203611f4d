// The measured speeds of this machine's devices, kept in a file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "plan/cost.h"

namespace tandem {

// Whether other programs kept the machine busy: such a measurement is used for minutes only.
enum class Measured { quietly, disturbed };

// Measurements of this machine, one per line of a file that several processes may use. Ignores invalid
// lines, and a file that cannot be read or written.
class RatesCache {
 public:
  // Returns the default path: tandem/rates under $XDG_CACHE_HOME, or under .cache in the home directory;
  // empty if there is neither.
  static std::string usual_path();
  explicit RatesCache(std::string path) : path_(std::move(path)) {}

  std::optional<DeviceRates> find(const std::string& device) const;
  void remember(const std::string& device, const DeviceRates& rates,
                Measured measured = Measured::quietly) const;

 private:
  std::string path_;
};

}  // namespace tandem
