// A libnccl for tests: adds in host memory, when a group ends, and does what a test asks of it. It checks what NCCL demands:
// all devices of a group once, each with its communicator and stream, the same number of values, and nothing after an abort.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

// What a device has as its stream.
struct FakeStream {
  std::atomic<bool> is_stuck = false;  // nothing behind a sum that hangs is ever done
  bool is_side =
      false;  // beside that of the device's runs: as late as it may be, a sum is made when it is awaited
  std::deque<std::function<void()>> late;
  size_t n_done = 0;  // of what was late

  size_t n_given() const { return n_done + late.size(); }
  void catch_up() { catch_up(n_given()); }
  void catch_up(size_t n) {
    for (; n_done < n; ++n_done) {
      const auto work = std::move(late.front());
      late.pop_front();
      work();
    }
  }
  void drop_late() {
    n_done += late.size();
    late.clear();
  }
};

namespace tandem::test {

struct FakeNccl {
  // Calls, from 0 on, that fail with an error of NCCL; -1: none.
  int fail_create = -1, fail_all_reduce = -1, fail_group_end = -1;
  // Calls that do not return before reset_fake_nccl().
  int block_create = -1, block_group_end = -1;
  int hang_sum = -1;            // the n-th sum never ends on its streams
  int async_error_of_sum = -1;  // and if it hangs, this is what communicators report: one of ncclResult_t
  std::vector<std::string>
      calls;  // "InitAll 0,1", "GroupStart", "AllReduce 0 64", "GroupEnd", "Abort 0", "Destroy 0"
  std::vector<std::string> faults;  // what NCCL would not allow
  int n_open = 0;                   // communicators

  // Counted by the library.
  int n_create = 0, n_all_reduce = 0, n_group_end = 0, n_sum = 0;
  int n_side_sum = 0;  // of the sums, those in side streams
};

}  // namespace tandem::test

// The state of the loaded library.
extern "C" tandem::test::FakeNccl* fake_nccl_state();
inline tandem::test::FakeNccl& fake_nccl() {
  return *fake_nccl_state();
}
// Ends calls that do not return, and makes the state a new one.
extern "C" void reset_fake_nccl();
