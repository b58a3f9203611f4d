// Fails every call of a workload in turn: the first allocation, the second, ..., the first read, and so on, each in a
// process of its own. Checks how the process ends and what it leaves, and counts the outcomes.
//
// A sample of the calls by default; all with TANDEM_STRESS=all in the environment.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "stress/spawn.h"

namespace tandem::test {

struct Workload {
  std::string name;
  Job job;
  // Whether to try all allocations before the command begins too. They are the same for every command.
  bool begins_early = false;
  // What is wrong with the end of a process; empty: nothing. `whole` is the end without a failure.
  std::function<std::string(const Ended& ended, const Ended& whole, const JobFolder& folder)> defect;
};

// For most workloads: stdout is a beginning of the right text; each file in the folder is as before or complete and right;
// exit code 0 only if everything is complete.
std::string beginning_or_whole(const Job& job, const Ended& ended, const Ended& whole);

struct CallOutcomes {
  uint64_t n_calls = 0, n_tried = 0;
  std::map<int, uint64_t> exit_codes;
};

// Runs the workload as often as needed. Reports defects as failures of the current test, and prints a table.
void fail_every_call(const Workload& workload, const std::string& scratch_folder);

}  // namespace tandem::test
