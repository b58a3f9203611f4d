// Interface between the parts of the emulator.
#pragma once

#include <deque>
#include <vector>

#include "emulated/emulator.h"
#include "emulated/overlap.h"

namespace emulator {

// Asynchronous copies of a thread into shared memory; they happen at the wait, no earlier.
struct AsyncCopies {
  struct Copy {
    void* to;
    const void* from;
    size_t n_bytes, n_zeros;
  };
  std::vector<Copy> open;                // not in a group yet
  std::deque<std::vector<Copy>> groups;  // oldest first
};
AsyncCopies& async_copies();  // of the thread that runs

// Runs all blocks to their end. Where the shape says that they may begin before the kernels before them have ended,
// `unsettled` is what those have changed. A block's shared memory, of both kinds, is at most `max_shared` bytes.
void run_kernel(const Shape& shape, const std::function<void()>& kernel,
                const std::vector<Changes>& unsettled, size_t max_shared);

}  // namespace emulator
