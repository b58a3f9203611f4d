// Extras: tests with data that is not part of the repository (see tests/README.md). Each has a twin that needs none.
#pragma once

#include "support/paths.h"

// Skips the test if the file does not exist, and names it.
#define TANDEM_NEED_SHARED(path) \
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "an extra: " << (path).string() << " is not there"
