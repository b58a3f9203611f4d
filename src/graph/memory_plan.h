// Where activations lie in an arena: buffers whose lifetimes do not overlap share memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem {

// A buffer alive from step `first` to step `last`, both included.
struct BufferLifetime {
  size_t n_bytes = 0;
  int32_t first = 0;
  int32_t last = 0;
};

struct MemoryPlan {
  std::vector<size_t> offsets;  // one for each buffer, multiples of the alignment
  size_t n_bytes = 0;           // size of the arena
};

// Greedy by size: the largest buffers are placed first, each at the lowest offset where it meets no buffer
// that is alive at the same time. (Pisarchyk & Lee, arXiv:2001.03288, "greedy by size".)
MemoryPlan plan_memory(const std::vector<BufferLifetime>& buffers, size_t alignment);

}  // namespace tandem
