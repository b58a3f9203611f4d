// Lays out activations in an arena. Buffers whose lifetimes do not overlap share memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem {

// A buffer that is live from node `first` to node `last`, both included.
struct BufferLifetime {
  size_t n_bytes = 0;
  int32_t first = 0;
  int32_t last = 0;
};

struct MemoryPlan {
  std::vector<size_t> offsets;  // one per buffer, multiples of the alignment
  size_t n_bytes = 0;           // size of the arena
};

// Places the largest buffers first, each at the lowest offset where it overlaps no buffer that is live at
// the same time ("greedy by size", Pisarchyk & Lee, arXiv:2001.03288).
MemoryPlan plan_memory(const std::vector<BufferLifetime>& buffers, size_t alignment);

}  // namespace tandem
