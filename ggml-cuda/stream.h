// A device's stream: the order in which all its work happens. Numbers points in that order (events), and
// copies between the device and unpinned host memory through a ring of pinned pieces, so that copies are
// asynchronous: copy_in reads the caller's memory before it returns; copy_out has written it once the caller
// waits for an event recorded after it. Small copies to the device are collected, and made together by one kernel
// (small_copies.h) before the next work.
//
// One thread, with the device current. Throws Error(out_of_memory | io).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "ggml-cuda/ring.h"
#include "ggml-cuda/small_copies.h"
#include "ggml-cuda/timed_wait.h"

namespace tandem::cuda {

// An event is not recorded again while others hold it, because they may still wait for it.
using SharedEvent = std::shared_ptr<std::remove_pointer_t<cudaEvent_t>>;
SharedEvent make_event();

class Stream {
 public:
  static constexpr size_t kRingBytes = size_t{16} << 20;  // pinned
  // Of a stream beside the runs, pinned with its first copy. It holds a part of a sum over host memory that waits for the
  // runs before it, and the sum before that, so that the host need not wait too.
  static constexpr size_t kSideRingBytes = size_t{64} << 20;
  enum class Use : uint8_t { runs, side };

  explicit Stream(Use use = Use::runs);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // For work that is enqueued before the next call here.
  cudaStream_t get() {
    make_small_copies();
    return stream_;
  }

  uint64_t record();
  // Returns when everything before the event is done and the earlier copy_outs have written their bytes.
  void wait(uint64_t event);
  void synchronize() { wait(record()); }
  // For other streams to wait for; null when it is known to be complete.
  SharedEvent shared(uint64_t event) const;
  // What comes next here starts once another stream has done everything before.
  void wait_for(Stream& other);

  void copy_in(std::byte* to, const std::byte* from, size_t n_bytes);
  void copy_out(std::byte* to, const std::byte* from, size_t n_bytes);

  // Returns the whole ring, for an upload that manages it itself. The caller waits for the stream before the
  // next copy.
  std::span<std::byte> idle_ring();

 private:
  // A copy through a piece of the ring is complete once event `done` is; a copy_out then still has to be
  // copied to its target.
  struct Copy {
    std::byte* target = nullptr;  // of a copy_out
    uint64_t done = 0;
  };
  using Piece = Ring<Copy>::Piece;
  struct Recorded {
    uint64_t number;
    SharedEvent event;
  };

  void add_small_copy(std::byte* to, const std::byte* from, size_t n_bytes);
  void make_small_copies();
  void pin();
  Piece& take(size_t n_bytes);
  void finish_oldest();
  void reach(uint64_t event);  // blocks until the stream has passed it
  void forget(size_t n_events);
  void close();

  cudaStream_t stream_ = nullptr;
  const size_t n_pinned_bytes_;
  std::byte* pinned_ = nullptr;
  Ring<Copy> ring_;
  std::vector<SmallCopy> small_copies_;  // not enqueued yet
  std::deque<Recorded> recorded_;        // events that may not be complete, by ascending number
  std::vector<SharedEvent> spare_;
  uint64_t last_ = 0;  // number of the newest event
  TimedWait<> waits_;
};

}  // namespace tandem::cuda
