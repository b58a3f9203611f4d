// Runs the program under test in a folder of its own, with a preloaded library if asked, and collects what it leaves.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "stress/preload/failing_calls.h"

namespace tandem::test {

struct Job {
  std::vector<std::string> arguments;        // without the program
  std::string input;                         // stdin
  std::map<std::string, std::string> files;  // in the folder, by name; folders are made
  // "memory:17", as preload/failing_calls.h has it; empty: none, "count": only count
  std::string failing_call;
  std::vector<std::string> environment;  // besides what every program needs: "NAME=value"
};

struct Ended {
  int exit_code = -1;  // 128 + signal if one ended it; kEndless if it had to be killed
  std::string out, err;
  std::map<std::string, std::string> files;  // left in the folder, by name
  CallReport calls{};                        // if a library was preloaded
};
constexpr int kEndless = -2;

// A folder in which jobs run one after the other. Not thread-safe; different folders may work at the same time.
class JobFolder {
 public:
  explicit JobFolder(std::string path) : path_(std::move(path)) {}
  Ended run(const Job& job, int timeout_s = 120) const;

 private:
  std::string path_;
};

std::string library_path();  // of the preloaded library

// What a shell needs to repeat the job with the failing call.
std::string command_line(const Job& job);

}  // namespace tandem::test
