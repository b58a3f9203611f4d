// Where the program under test and the shared test data are.
#pragma once

#include <filesystem>
#include <string>

namespace tandem::test {

// The path of the program: $TANDEM_BINARY, else the one of this build; empty when it is not there.
std::string binary_path();

// $TANDEM_SHARED/data/NAME, or ../shared/data/NAME beside the source tree. It is not part of the repository;
// tests that need it say so and are skipped without it.
std::filesystem::path shared_data(const std::string& name);

// tests/NAME of the source tree, for data that is part of the repository: $TANDEM_TESTS, else where the build
// was made.
std::filesystem::path test_data(const std::string& name);

}  // namespace tandem::test
