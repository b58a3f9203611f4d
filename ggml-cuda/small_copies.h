// Copies of a step's inputs: many small ones, made by one kernel that reads pinned host memory. A copy engine would take
// a few microseconds for each, and would keep them waiting behind the large pieces of weights on their way (fetcher.h).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace tandem::cuda {

struct SmallCopy {
  std::byte* to;
  const std::byte* from;  // pinned, 16-byte aligned, readable up to a multiple of 16
  uint32_t n_bytes;
};

inline constexpr size_t kMaxSmallCopies = 16;
inline constexpr size_t kSmallCopyBytes = size_t{64} << 10;  // the bus takes about a microsecond

// At most kMaxSmallCopies, each of at most kSmallCopyBytes; none writes where another does. Takes the place of
// whatever the stream would do first: it does not begin early.
void launch_small_copies(std::span<const SmallCopy> copies, cudaStream_t stream);

}  // namespace tandem::cuda
