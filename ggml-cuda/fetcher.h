// Fetches weights while segments run (Device::fetch). Where the source is not pinned, mostly mapped files, a
// separate thread copies it piece by piece into pinned memory; the copy engine takes each piece to device
// memory, and a kernel moves it to its slot in the layout of layout.h. Copies and kernels have a stream each:
// one piece is laid out while the next is on the bus. Floats lie as in the file and go directly to their
// slot.
//
//   file -> pinned piece -> device piece -> slot           pinned memory -> device piece -> slot
//     thread         copy engine       kernel                      copy engine       kernel
//
// Each arrow uses its own resource, so the slowest of them determines the speed. The thread enqueues a piece while its helpers
// already copy the next one; of pinned memory (pinned_memory.h) it enqueues all pieces at once and waits for none.
//
// Fetches run in the order they are requested. A fetch fills its pieces at once, and writes to its slot only
// after the event it was given. A Fetcher allocates kStagingBytes of pinned memory and as many of device
// memory when created; Budgets::vram_overhead includes them.
//
// All functions are called from one thread, with the device current. Throws Error(out_of_memory | io); an
// error in the thread is thrown by the next join() or check(), and nothing is fetched until then.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "base/thread_pool.h"
#include "device/device.h"
#include "ggml-cuda/pinned_memory.h"
#include "ggml-cuda/stream.h"

namespace tandem::cuda {

class Fetcher {
 public:
  static constexpr size_t kPieceBytes = size_t{4} << 20;
  static constexpr size_t kPieces = 4;
  static constexpr size_t kStagingBytes = kPieces * kPieceBytes;

  explicit Fetcher(int device);  // the driver's number
  ~Fetcher();                    // abandons unfinished fetches
  Fetcher(const Fetcher&) = delete;
  Fetcher& operator=(const Fetcher&) = delete;

  // Numbers fetches from 1. `after` may be null.
  uint64_t fetch(std::byte* to, const Weight& weight, SharedEvent after);
  // Work enqueued to the stream (always the same one) after this call starts when the fetch is complete; of kernels that
  // may begin early, those behind a fence (fence.h).
  // Blocks until all copies of the fetch are enqueued.
  void join(uint64_t fetched, cudaStream_t stream);
  void check();
  // Returns when every requested fetch is enqueued or has failed: cudaFree() waits for the rest.
  void settle();

 private:
  struct Piece {
    std::byte* pinned = nullptr;
    std::byte* device = nullptr;
    SharedEvent copied, done;
  };
  struct Job {
    std::byte* to;
    Weight weight;  // without its name
    SharedEvent after;
  };
  struct Complete {
    uint64_t number;
    SharedEvent event;
  };

  void take_memory();
  void give_memory_back();
  void work();
  void bring(const Job& job);
  void fill(const Job& job, size_t at, size_t count, const Piece& piece, const std::function<void()>& meanwhile);
  void enqueue(const Job& job, size_t at, size_t count, const Piece& piece);
  void bring_pinned(const Job& job, const PinnedMemory::List& pages, size_t chunk);
  void copy_pinned(const PinnedMemory::List& pages, std::byte* to, const std::byte* from, size_t n_bytes);
  void lay_out_piece(const Job& job, size_t at, size_t count, const Piece& piece);
  SharedEvent record_complete();
  void rethrow();

  int device_;
  cudaStream_t copies_ = nullptr, layouts_ = nullptr;
  std::array<Piece, kPieces> pieces_;
  size_t next_piece_ = 0;
  ThreadPool copiers_;  // run by the thread

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> queue_;
  std::deque<Complete> complete_;  // not joined yet, by ascending number
  std::vector<SharedEvent> spare_;
  uint64_t n_asked_ = 0, n_issued_ = 0;
  std::exception_ptr failure_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace tandem::cuda
