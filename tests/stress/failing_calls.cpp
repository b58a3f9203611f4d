#include "stress/failing_calls.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string_view>
#include <thread>

namespace tandem::test {
namespace {

constexpr const char* kNames[kCallKinds] = TANDEM_CALL_KIND_NAMES;
constexpr int kExitCodes[] = {0, 2, 3, 4, 5, 6, 7, 130};  // those that the manual names, but for bugs
bool try_all() {
  const char* value = getenv("TANDEM_STRESS");
  return value && std::string_view(value) == "all";
}

// A sample: the first calls, and some of the others.
struct Sample {
  uint64_t n_first, n_spread;
};

// `later`: for the trials in which all later calls fail too. They end early, and mostly in the same way.
Sample sample(bool later) {
  if (try_all()) return later ? Sample{20, 200} : Sample{20, UINT64_MAX};
  return later ? Sample{5, 8} : Sample{20, 20};
}
constexpr size_t kMaxDefects = 20;  // that are shown

// The numbers of the calls to fail, from 1. The first `n_common` calls are those of every command.
std::vector<uint64_t> chosen(uint64_t n_calls, uint64_t n_common, const Sample& s) {
  std::set<uint64_t> some;
  n_common = std::min(n_common, n_calls);
  const uint64_t n_own = n_calls - n_common, n_spread = std::min(s.n_spread, n_own);
  for (uint64_t n = 1; n <= std::min(n_calls, s.n_first); ++n) some.insert(n);
  for (uint64_t i = 0; i < n_spread; ++i) some.insert(n_calls - n_own * i / n_spread);
  return {some.begin(), some.end()};
}

// The allocations before a command begins: its options are read, and those of all other commands are described.
uint64_t count_common_allocations(const JobFolder& folder) {
  constexpr uint64_t kMargin = 2000;  // for the shortest command
  const uint64_t n = folder.run({.arguments = {"version"}, .failing_call = "count:0"}).calls.n_calls[kMemory];
  return n > kMargin ? n - kMargin : 0;
}

struct Trial {
  CallKind kind;
  uint64_t at;
  bool later;  // every later call fails too
};

std::string text_of(const Trial& t) {
  return std::string(kNames[t.kind]) + ":" + std::to_string(t.at) + (t.later ? "+" : "");
}

std::string how_it_ended(const Ended& ended) {
  if (ended.exit_code == kEndless) return "does not end";
  if (ended.exit_code >= 128 && ended.exit_code != 130)
    return "ended by signal " + std::to_string(ended.exit_code - 128);
  return "exit code " + std::to_string(ended.exit_code);
}

void print(const std::string& name, const std::map<std::string, CallOutcomes>& table) {
  printf("%-10s %-10s %8s %8s ", name.c_str(), "call", "calls", "tried");
  for (const int code : kExitCodes) printf("%7s", ("exit " + std::to_string(code)).c_str());
  printf("\n");
  for (const auto& [call, row] : table) {
    if (row.n_calls == 0) continue;
    printf("%-10s %-10s %8lu %8lu ", "", call.c_str(), row.n_calls, row.n_tried);
    for (const int code : kExitCodes) {
      const auto found = row.exit_codes.find(code);
      printf("%7lu", found == row.exit_codes.end() ? 0 : found->second);
    }
    printf("\n");
  }
  fflush(stdout);
}

}  // namespace

std::string beginning_or_whole(const Job& job, const Ended& ended, const Ended& whole) {
  // An error message gets a line of its own, so the text may end in a line break.
  std::string_view out = ended.out;
  if (ended.exit_code != 0 && out.ends_with('\n')) out.remove_suffix(1);
  if (!whole.out.starts_with(out)) return "stdout is not a beginning of the right text";
  for (const auto& [name, text] : ended.files) {
    const auto right = whole.files.find(name), before = job.files.find(name);
    const bool as_before = before != job.files.end() && before->second == text;
    const bool complete = right != whole.files.end() && right->second == text;
    if (!as_before && !complete) return name + " is torn, wrong or left over";
  }
  for (const auto& [name, text] : job.files) {
    if (!ended.files.contains(name)) return name + " is lost";
  }
  if (ended.exit_code == 3) return "a good file is called a bad one";
  if (ended.exit_code != 0) return "";
  if (ended.out != whole.out) return "exit code 0, but stdout is incomplete";
  if (ended.files != whole.files) return "exit code 0, but a file is missing or old";
  return "";
}

void fail_every_call(const Workload& workload, const std::string& scratch_folder) {
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  const JobFolder first(scratch_folder + "/0");
  Job job = workload.job;
  job.failing_call = "count:0";
  const Ended whole = first.run(job);
  ASSERT_EQ(whole.exit_code, 0) << command_line(job) << "\n" << whole.err;
  ASSERT_EQ(workload.defect(whole, whole, first), "");
  const Ended again = first.run(job);
  ASSERT_EQ(workload.defect(again, whole, first), "") << "the workload differs from run to run";

  const uint64_t n_common = workload.begins_early ? 0 : count_common_allocations(first);
  std::vector<Trial> trials;
  std::map<std::string, CallOutcomes> table;
  for (int kind = 0; kind < kCallKinds; ++kind) {
    for (const bool later : {false, true}) {
      table[kNames[kind] + std::string(later ? "+" : "")].n_calls = whole.calls.n_calls[kind];
      for (const uint64_t at :
           chosen(whole.calls.n_calls[kind], kind == kMemory ? n_common : 0, sample(later))) {
        trials.push_back({static_cast<CallKind>(kind), at, later});
      }
    }
  }

  std::mutex mutex;
  std::atomic<size_t> next{0};
  std::vector<std::string> defects;
  const auto work = [&](unsigned index) {
    const JobFolder folder(scratch_folder + "/" + std::to_string(index));
    for (size_t i = next++; i < trials.size(); i = next++) {
      Job mine = workload.job;
      mine.failing_call = text_of(trials[i]);
      const Ended ended = folder.run(mine);
      const bool known = std::ranges::count(kExitCodes, ended.exit_code) > 0;
      const std::string defect = known ? workload.defect(ended, whole, folder) : how_it_ended(ended);
      const std::lock_guard lock(mutex);
      CallOutcomes& row = table[kNames[trials[i].kind] + std::string(trials[i].later ? "+" : "")];
      ++row.n_tried;
      ++row.exit_codes[ended.exit_code];
      if (!defect.empty()) {
        defects.push_back(defect + " (" + how_it_ended(ended) + "): " + command_line(mine) + "\n    " +
                          ended.err);
      }
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
    threads.emplace_back(work, i);
  for (std::thread& t : threads) t.join();

  print(workload.name, table);
  if (defects.size() > kMaxDefects) {
    ADD_FAILURE() << defects.size() << " defects, the first " << kMaxDefects << ":";
    defects.resize(kMaxDefects);
  }
  for (const std::string& defect : defects) ADD_FAILURE() << defect;
}

}  // namespace tandem::test
