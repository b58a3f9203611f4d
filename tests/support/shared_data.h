// Tests that need the shared test data.
#pragma once

#include "support/paths.h"

// Skips the test if the file does not exist, and names it.
#define TANDEM_NEED_SHARED(path) \
  if (!std::filesystem::exists(path)) GTEST_SKIP() << (path).string() << " is not there"
