#include "graph/memory_plan.h"

#include <algorithm>
#include <numeric>

#include "base/checked.h"

namespace tandem {

MemoryPlan plan_memory(const std::vector<BufferLifetime>& buffers, size_t alignment) {
  std::vector<size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return buffers[a].n_bytes > buffers[b].n_bytes; });

  MemoryPlan plan;
  plan.offsets.assign(buffers.size(), 0);
  std::vector<size_t> placed;  // indices, by ascending offset
  for (size_t i : order) {
    const BufferLifetime& buffer = buffers[i];
    const size_t size = align_up(buffer.n_bytes, alignment);
    size_t offset = 0;
    for (size_t j : placed) {
      const BufferLifetime& other = buffers[j];
      if (other.last < buffer.first || buffer.last < other.first) continue;
      if (plan.offsets[j] >= offset + size) break;
      offset = std::max(offset, plan.offsets[j] + align_up(other.n_bytes, alignment));
    }
    plan.offsets[i] = offset;
    plan.n_bytes = std::max(plan.n_bytes, offset + size);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), i,
                                   [&](size_t a, size_t b) { return plan.offsets[a] < plan.offsets[b]; }),
                  i);
  }
  return plan;
}

}  // namespace tandem
