// Where the shared test data is: $TANDEM_SHARED/data, or ../shared/data beside the source tree. It is not part of the
// repository; tests that need it say so and are skipped without it.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace tandem::test {

inline std::filesystem::path shared_data(const std::string& name) {
  const char* shared = std::getenv("TANDEM_SHARED");
  return std::filesystem::path(shared ? shared : TANDEM_DEFAULT_SHARED) / "data" / name;
}

}  // namespace tandem::test

// Skips the test, by name, when the file is not there.
#define TANDEM_NEED_SHARED(path)                                                             \
  if (!std::filesystem::exists(path)) GTEST_SKIP() << (path).string() << " is not there"
