// Interface between the parts of the emulator.
#pragma once

#include <array>
#include <deque>
#include <optional>
#include <vector>

#include "emulated/emulator.h"
#include "emulated/overlap.h"

namespace emulator {

// Asynchronous copies of a thread into shared memory that have not arrived at once; they do at the wait, no earlier.
struct AsyncCopies {
  struct Copy {
    void* to;
    const void* from;
    size_t n_bytes, n_zeros;
  };
  std::vector<Copy> open;                // not in a group yet
  std::deque<std::vector<Copy>> groups;  // oldest first
  bool unfenced = false;  // some have arrived that the tensor cores of warpgroups may not see yet
};
AsyncCopies& async_copies();  // of the thread that runs

// What a thread has of its warpgroup's products. Their results are there at the wait, no earlier; shared memory is read at any
// time until then.
struct WarpgroupProducts {
  struct Product {
    std::array<float*, 64> sums;
    std::array<std::array<float, 16>, 2> a;  // rows g, g + 8 of the warp's
    uint64_t b;                              // the matrix descriptor
    bool adds;
    std::optional<std::array<float, 64>> product;  // computed at once
  };
  std::vector<Product> open;                // not in a group yet
  std::deque<std::vector<Product>> groups;  // oldest first
  bool fenced = false;                      // since the last group
};
WarpgroupProducts& warpgroup_products();  // of the thread that runs
// The PTX of warpgroups.cpp.
using Operands = std::initializer_list<Operand>;
void multiply_by_warpgroup(Operands operands);
void fence_warpgroup(Operands);
void end_warpgroup_group(Operands);
void wait_warpgroup_groups(Operands operands);

unsigned draw();  // a random number

// Runs all blocks to their end. Where the shape says that they may begin before the kernels before them have ended,
// `unsettled` is what those have changed. A block's shared memory, of both kinds, is at most `max_shared` bytes.
void run_kernel(const Shape& shape, const std::function<void()>& kernel,
                const std::vector<Changes>& unsettled, size_t max_shared);

}  // namespace emulator
