// Prefetching what the next rounds read of caches: into L1, or only into L2.
#pragma once

#include <immintrin.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/fp16.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// Only into L2 on a Zen 4 (and on a Zen 3, of the same family, where both are as fast). What is fetched some KB ahead crowds
// its L1 of 32 KB, and its core waits for few lines of L1 at a time: attention read 9 GB/s of a cache in memory, where plain loads
// read 20, and reads 15 so (heads of 128 columns, one query and one core: F16 10 and 18, Q8_0 8 and 15, Q4_0 8 and 11). A Zen 5,
// with 48 KB, took a third longer with L2.
TANDEM_INLINE bool fetches_into_l2() {
  return __builtin_cpu_is("amdfam19h");
}

// The lines of some bytes, which need not be there: unrolled.
template <int n_bytes>
TANDEM_INLINE void fetch_lines(const void* from) {
  const char* p = static_cast<const char*>(from);
  if (fetches_into_l2()) {
#pragma GCC unroll 16
    for (int b = 0; b < n_bytes; b += 64) _mm_prefetch(p + b, _MM_HINT_T1);
  } else {
#pragma GCC unroll 16
    for (int b = 0; b < n_bytes; b += 64) _mm_prefetch(p + b, _MM_HINT_T0);
  }
}
// The same in a loop: code that is too long when unrolled is slower.
TANDEM_INLINE void fetch_lines(const void* from, size_t n_bytes) {
  const char* p = static_cast<const char*>(from);
  if (fetches_into_l2()) {
#pragma GCC unroll 1
    for (size_t b = 0; b < n_bytes; b += 64) _mm_prefetch(p + b, _MM_HINT_T1);
  } else {
#pragma GCC unroll 1
    for (size_t b = 0; b < n_bytes; b += 64) _mm_prefetch(p + b, _MM_HINT_T0);
  }
}

// How far ahead of its use each of several streams is fetched into the L2, and into the L1, where both are done. The prefetchers of the
// caches follow each to the end of its page, so several have more lines under way; further ahead, the lines fill up what L2 can wait for.
// Loads that wait for the L2 alone take a tenth of the bandwidth (avx512/linear_rows.h, avx512/linear_float.cpp).
inline constexpr size_t kAheadInL2 = 2 << 10, kAheadInL1 = 3 << 9;

// How many streams of memory are read at a time, where that is faster (reads_in_streams() in linear_kernels.h).
inline constexpr int kStreams = 4;

// Rows of each stream, of n_rows that lie one behind the other; 0: they are read as one, because several would be too short.
TANDEM_INLINE int64_t rows_of_streams(int64_t n_rows, size_t row_bytes, int64_t n_streams = kStreams) {
  constexpr size_t kLeastBytes = 4 << 10;
  const int64_t n = n_rows / n_streams;
  return static_cast<size_t>(n) * row_bytes >= kLeastBytes ? n : 0;
}

// How far ahead of their use the streams of an item of work are fetched: some bytes and, near their ends, where the next item's streams
// begin, for that item lies behind this one and most likely is as long and the same worker's. Without it each item began by waiting
// for memory. With it, and with short streams too, two cores of a Granite Rapids decode Q4_K_M and Q4_0 of tinyllama 3 to 10% faster
// (two tokens 4 to 8, four 5 to 11), 8 layers of Llama 3.1 8B 1 to 3%; Q8_0, which was read as fast as plain loads read, at the same
// speed; with kernels of AVX2 Q4_K_M and Q4_0 5% faster. F16 was 2% slower.
class AheadOfStreams {
 public:
  // stream_bytes: of one; item_bytes: of all of them and the rows behind them.
  AheadOfStreams(size_t stream_bytes, size_t item_bytes, size_t ahead)
      : left_(stream_bytes), ahead_(ahead), next_item_(item_bytes - stream_bytes) {}

  // Up to step `end` of a row, what lies `distance` bytes behind a step is fetched with it.
  struct Part {
    int64_t end;
    size_t distance;
  };
  // The two parts of every stream's next row, of which row_bytes are n_steps of step_bytes and perhaps a rest.
  TANDEM_INLINE std::array<Part, 2> next_row(size_t row_bytes, int64_t n_steps, size_t step_bytes) {
    const size_t here = left_ > ahead_ ? (left_ - ahead_ + step_bytes - 1) / step_bytes : 0;
    left_ -= row_bytes;
    return {{{here < static_cast<size_t>(n_steps) ? static_cast<int64_t>(here) : n_steps, ahead_},
             {n_steps, ahead_ + next_item_}}};
  }

 private:
  size_t left_, ahead_, next_item_;
};

// Memory that is used next, fetched into L2 while other memory is: in kStreams streams, some lines of each in turn.
class Streams {
 public:
  // The n pieces of n_bytes each at `pieces`, while `used` bytes are read. kStreams is a multiple of n.
  Streams(const std::byte* const* pieces, int n, size_t n_bytes, size_t used)
      : n_bytes_((n_bytes / static_cast<size_t>(kStreams / n) + 63) / 64 * 64),
        times_((static_cast<size_t>(n) * n_bytes + used - 1) / used) {
    const int of_piece = kStreams / n;
    for (int i = 0; i < kStreams; ++i)
      from_[i] = reinterpret_cast<const char*>(pieces[i / of_piece]) + static_cast<size_t>(i % of_piece) * n_bytes_;
  }
  Streams() : n_bytes_(0), times_(0) {}  // of nothing

  // Fetches the share of used_bytes of the memory that is read meanwhile.
  template <int used_bytes>
  TANDEM_INLINE void fetch() {
    for (size_t i = 0; i < times_ && at_ < n_bytes_; ++i) {
      const char* p = from_[turn_] + at_;
      if constexpr (used_bytes <= 256) {
#pragma GCC unroll 4
        for (int b = 0; b < used_bytes; b += 64) _mm_prefetch(p + b, _MM_HINT_T1);
      } else {
#pragma GCC unroll 1
        for (int b = 0; b < used_bytes; b += 64) _mm_prefetch(p + b, _MM_HINT_T1);
      }
      turn_ = (turn_ + 1) % kStreams;
      if (turn_ == 0) at_ += used_bytes;
    }
  }

 private:
  const char* from_[kStreams];
  size_t n_bytes_, times_, at_ = 0;  // n_bytes_, at_: of a stream
  unsigned turn_ = 0;
};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
