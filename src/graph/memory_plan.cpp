#include "graph/memory_plan.h"

#include <algorithm>
#include <numeric>

#include "base/checked.h"

namespace tandem {
namespace {

// The buffers placed so far, indexed by the nodes at which they are live.
class PlacedBuffers {
 public:
  explicit PlacedBuffers(const std::vector<BufferLifetime>& buffers) : buffers_(buffers) {
    if (buffers.empty()) return;
    first_node_ = std::ranges::min(buffers, {}, &BufferLifetime::first).first;
    const int32_t last_node = std::ranges::max(buffers, {}, &BufferLifetime::last).last;
    end_.resize(static_cast<size_t>(last_node - first_node_) + 1);
    for (const BufferLifetime& b : buffers) {
      for (int32_t node = b.first; node <= b.last; ++node) ++end_[index(node)];
    }
    begin_.resize(end_.size());
    std::exclusive_scan(end_.begin(), end_.end(), begin_.begin(), size_t{0});
    live_.resize(begin_.back() + end_.back());
    end_ = begin_;
  }

  void add(size_t i) {
    for (int32_t node = buffers_[i].first; node <= buffers_[i].last; ++node) live_[end_[index(node)]++] = i;
  }

  // Appends the placed buffers that are live at the same time as `buffer`, each once.
  void find_overlapping(const BufferLifetime& buffer, std::vector<size_t>& found) const {
    for (int32_t node = buffer.first; node <= buffer.last; ++node) {
      for (size_t at = begin_[index(node)]; at < end_[index(node)]; ++at) {
        if (node == std::max(buffer.first, buffers_[live_[at]].first)) found.push_back(live_[at]);
      }
    }
  }

 private:
  size_t index(int32_t node) const { return static_cast<size_t>(node - first_node_); }

  const std::vector<BufferLifetime>& buffers_;
  int32_t first_node_ = 0;
  std::vector<size_t> begin_, end_;  // [node] range in live_
  std::vector<size_t> live_;
};

}  // namespace

MemoryPlan plan_memory(const std::vector<BufferLifetime>& buffers, size_t alignment) {
  std::vector<size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return buffers[a].n_bytes > buffers[b].n_bytes; });

  MemoryPlan plan;
  plan.offsets.assign(buffers.size(), 0);
  PlacedBuffers placed(buffers);
  std::vector<size_t> overlapping;
  for (size_t i : order) {
    const BufferLifetime& buffer = buffers[i];
    const size_t size = align_up(buffer.n_bytes, alignment);
    overlapping.clear();
    placed.find_overlapping(buffer, overlapping);
    std::ranges::sort(overlapping, {}, [&](size_t j) { return plan.offsets[j]; });
    size_t offset = 0;
    for (size_t j : overlapping) {
      if (plan.offsets[j] >= offset + size) break;
      offset = std::max(offset, plan.offsets[j] + align_up(buffers[j].n_bytes, alignment));
    }
    plan.offsets[i] = offset;
    plan.n_bytes = std::max(plan.n_bytes, offset + size);
    placed.add(i);
  }
  return plan;
}

}  // namespace tandem
