// How fast this machine reads memory: the roof over decoding, which reads every weight once a token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"

namespace tandem {

// Bytes of one last cache before memory, as the system tells them (a machine may have several); 0: it does not.
size_t last_cache_bytes();

// A buffer that caches hold little of, and that is not much of `free_bytes`; 16 MiB at the least, 2 GiB at most. Four times the last
// cache, but no more than 512 MiB for each of n_cores: a virtual machine of two has little of a server's 480 MiB, and takes seconds to
// be given memory. (With 1 GiB such a one measured 33.1 GB/s, with 1.9 GiB 32.)
size_t bandwidth_buffer_bytes(size_t free_bytes, size_t cache_bytes = last_cache_bytes(), int n_cores = physical_core_count());

// Memory that all workers of a pool read together by a plain loop, in chunks of 1 MiB.
class ReadLoop {
 public:
  static constexpr size_t kChunk = size_t{1} << 20;  // what a worker claims at a time

  // What of the memory makes no whole chunk is left out. It stays the caller's.
  ReadLoop(ThreadPool& pool, std::span<const std::span<const std::byte>> memory);
  int64_t n_chunks() const { return static_cast<int64_t>(chunks_.size()); }

  struct Pass {
    double seconds;
    uint64_t sum;  // of all 64-bit words
  };
  // Reads n chunks from `first` on, each in one stream or in four. Throws Error(interrupted) soon after a Ctrl-C. Call it from the
  // thread that may run the pool.
  Pass read(int64_t first, int64_t n, bool in_streams) const;

 private:
  ThreadPool& pool_;
  std::vector<const std::byte*> chunks_;
};

// Bytes per second at which all workers of the pool together read memory. A buffer of n_bytes is read over
// and over, a part of it at a time, and the fastest part counts: on a busy machine there is one that was
// not disturbed, and when its turn comes again the others have driven it out of the caches. Takes as long
// as writing it once and reading it four times, 0.4 s at least, and n_bytes of memory while it runs. Call it
// from the thread that may run the pool. Throws Error(out_of_memory), and Error(interrupted) soon after a Ctrl-C.
double measure_read_bandwidth(ThreadPool& pool, size_t n_bytes);

}  // namespace tandem
