#include "nccl/fake_nccl.h"

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>

using tandem::test::FakeNccl;

struct ncclComm {
  int device = 0, rank = 0, n_ranks = 0;
  ncclResult_t async_error = ncclSuccess;
  cudaStream_t stuck = nullptr;  // by a sum of this communicator
  cudaStream_t late = nullptr;   // has sums of it that are late
};

namespace {

struct Summand {
  const float* in;
  float* out;
  size_t n;
  ncclComm_t communicator;
  cudaStream_t stream;
};

FakeNccl state;
std::atomic<bool> is_released = false;
std::atomic<int> n_blocked = 0;
std::vector<Summand> group;
bool in_group = false;

std::mutex log_mutex;  // a call that blocks is in a thread of its own

void log(const std::string& call) {
  const std::lock_guard lock(log_mutex);
  state.calls.push_back(call);
}
void fault(const std::string& what) {
  state.faults.push_back(what);
}

void block() {
  ++n_blocked;
  while (!is_released) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  --n_blocked;
}

void add(const std::vector<Summand>& summands) {
  if (summands.empty()) return;
  std::vector<float> sum(summands.front().n, 0.0f);
  for (const Summand& s : summands) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += s.in[i];
  }
  for (const Summand& s : summands) {
    for (size_t i = 0; i < sum.size(); ++i) s.out[i] = sum[i];
  }
}

void add_group() {
  if (group.empty()) return fault("an empty group");
  const size_t n_ranks = static_cast<size_t>(group.front().communicator->n_ranks);
  if (group.size() != n_ranks) fault("a group without some device");
  std::vector<bool> seen(n_ranks, false);
  for (const Summand& s : group) {
    const auto rank = static_cast<size_t>(s.communicator->rank);
    if (seen[rank]) fault("a device twice in a group");
    seen[rank] = true;
    if (s.n != group.front().n) fault("different sizes");
    if (!s.stream) fault("no stream");
  }
  if (state.n_sum++ == state.hang_sum) {
    for (const Summand& s : group) {
      s.stream->is_stuck = true;
      s.communicator->stuck = s.stream;
      if (state.async_error_of_sum >= 0)
        s.communicator->async_error = static_cast<ncclResult_t>(state.async_error_of_sum);
    }
    return;
  }
  const bool is_side = group.front().stream->is_side;
  for (const Summand& s : group) {
    if (s.stream->is_side != is_side) fault("some devices add beside their runs, and others do not");
    if (!is_side && !s.stream->late.empty()) fault("a sum before what its stream was given");
  }
  if (!is_side) return add(group);
  ++state.n_side_sum;
  const auto all = std::make_shared<std::vector<Summand>>(group);
  for (const Summand& s : group) {
    s.communicator->late = s.stream;
    s.stream->late.push_back([all] {
      add(*all);
      all->clear();
    });
  }
}

ncclResult_t end(ncclComm_t communicator, const char* how) {
  log(how + std::to_string(communicator->device));
  if (communicator->stuck) communicator->stuck->is_stuck = false;
  --state.n_open;
  delete communicator;
  return ncclSuccess;
}

}  // namespace

extern "C" {

FakeNccl* fake_nccl_state() {
  return &state;
}
void reset_fake_nccl() {
  is_released = true;
  while (n_blocked > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  is_released = false;
  state = FakeNccl{};
  group.clear();
  in_group = false;
}

ncclResult_t ncclCommInitAll(ncclComm_t* communicators, int n, const int* devices) {
  const int number = state.n_create++;
  if (number == state.block_create) {
    block();
    return ncclSystemError;
  }
  if (number == state.fail_create) return ncclUnhandledCudaError;
  std::string text = "InitAll ";
  for (int i = 0; i < n; ++i) {
    text += (i > 0 ? "," : "") + std::to_string(devices[i]);
    communicators[i] = new ncclComm{devices[i], i, n, ncclSuccess};
  }
  state.n_open += n;
  log(text);
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  if (in_group) fault("a group in a group");
  log("GroupStart");
  in_group = true;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (!in_group) fault("the end of no group");
  in_group = false;
  log("GroupEnd");
  const int number = state.n_group_end++;
  if (number == state.block_group_end) {
    group.clear();
    block();
    return ncclInternalError;
  }
  const bool fails = number == state.fail_group_end;
  if (!fails && static_cast<int>(group.size()) > 0) add_group();
  group.clear();
  return fails ? ncclSystemError : ncclSuccess;
}

#ifndef WITHOUT_ALL_REDUCE
ncclResult_t ncclAllReduce(const void* in, void* out, size_t n, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t communicator, cudaStream_t stream) {
  if (!in_group) fault("a sum outside of a group");
  if (type != ncclFloat || op != ncclSum) fault("not a sum of floats");
  log("AllReduce " + std::to_string(communicator->device) + " " + std::to_string(n));
  if (state.n_all_reduce++ == state.fail_all_reduce) {
    group.clear();
    return ncclInvalidArgument;
  }
  group.push_back({static_cast<const float*>(in), static_cast<float*>(out), n, communicator, stream});
  return ncclSuccess;
}
#endif

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* error) {
  *error = communicator->async_error;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  if (communicator->late) communicator->late->drop_late();
  return end(communicator, "Abort ");
}
ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  return end(communicator, "Destroy ");
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclRemoteError: return "remote process exited or there was a network error";
    default: return "unknown error";
  }
}

}  // extern "C"
