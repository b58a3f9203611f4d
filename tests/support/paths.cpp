#include "support/paths.h"

#include <cstdlib>

namespace tandem::test {
namespace {

const char* from_environment(const char* name, const char* otherwise) {
  const char* set = std::getenv(name);
  return set ? set : otherwise;
}

// The tests must not depend on the settings of whoever runs them.
const bool no_configuration = setenv("TANDEM_CONFIG", "", 0) == 0;

}  // namespace

std::string binary_path() {
  const char* binary = from_environment("TANDEM_BINARY", TANDEM_DEFAULT_BINARY);
  return std::filesystem::exists(binary) ? binary : "";
}

std::filesystem::path shared_data(const std::string& name) {
  return std::filesystem::path(from_environment("TANDEM_SHARED", TANDEM_DEFAULT_SHARED)) / "data" / name;
}

std::filesystem::path test_data(const std::string& name) {
  return std::filesystem::path(from_environment("TANDEM_TESTS", TANDEM_DEFAULT_TESTS)) / name;
}

}  // namespace tandem::test
