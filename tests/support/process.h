// Runs the program under test in a shell.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

#include "support/paths.h"

namespace tandem::test {

struct Outcome {
  std::string out;  // stdout of the shell command
  int exit_code = -1;
};

// Runs `before 'PROGRAM' after` in a shell.
inline Outcome shell(const std::string& before, const std::string& after) {
  const std::string line = before + " '" + binary_path() + "' " + after;
  FILE* pipe = popen(line.c_str(), "r");
  Outcome outcome;
  std::array<char, 4096> chunk;
  while (const size_t n = fread(chunk.data(), 1, chunk.size(), pipe)) outcome.out.append(chunk.data(), n);
  const int status = pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

}  // namespace tandem::test

// Skips the test if the program is not built.
#define TANDEM_NEED_BINARY() \
  if (::tandem::test::binary_path().empty()) GTEST_SKIP() << "TANDEM_BINARY names no program"
