// Where the program under test and the shared test data are.
#pragma once

#include <filesystem>
#include <string>

namespace tandem::test {

// The path of the program: $TANDEM_BINARY, or the one of this build; empty if it does not exist.
std::string binary_path();

// $TANDEM_SHARED/data/NAME, or ../shared/data/NAME beside the source tree. It is not part of the repository;
// tests that need a missing file are skipped and name it.
std::filesystem::path shared_data(const std::string& name);

// Data in the repository: $TANDEM_TESTS/NAME, or tests/NAME of the source tree.
std::filesystem::path test_data(const std::string& name);

}  // namespace tandem::test
