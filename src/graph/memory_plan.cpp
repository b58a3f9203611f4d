#include "graph/memory_plan.h"

#include <algorithm>
#include <numeric>

#include "base/checked.h"

namespace tandem {
namespace {

// The buffers that have their place, by the steps in which they are alive.
class PlacedBuffers {
 public:
  explicit PlacedBuffers(const std::vector<BufferLifetime>& buffers) : buffers_(buffers) {
    if (buffers.empty()) return;
    first_step_ = std::ranges::min(buffers, {}, &BufferLifetime::first).first;
    const int32_t last_step = std::ranges::max(buffers, {}, &BufferLifetime::last).last;
    end_.resize(static_cast<size_t>(last_step - first_step_) + 1);
    for (const BufferLifetime& b : buffers) {
      for (int32_t step = b.first; step <= b.last; ++step) ++end_[index(step)];
    }
    begin_.resize(end_.size());
    std::exclusive_scan(end_.begin(), end_.end(), begin_.begin(), size_t{0});
    alive_.resize(begin_.back() + end_.back());
    end_ = begin_;
  }

  void add(size_t i) {
    for (int32_t step = buffers_[i].first; step <= buffers_[i].last; ++step) alive_[end_[index(step)]++] = i;
  }

  // Those that are alive at the same time, each once.
  void find_beside(const BufferLifetime& buffer, std::vector<size_t>& found) const {
    for (int32_t step = buffer.first; step <= buffer.last; ++step) {
      for (size_t at = begin_[index(step)]; at < end_[index(step)]; ++at) {
        if (step == std::max(buffer.first, buffers_[alive_[at]].first)) found.push_back(alive_[at]);
      }
    }
  }

 private:
  size_t index(int32_t step) const { return static_cast<size_t>(step - first_step_); }

  const std::vector<BufferLifetime>& buffers_;
  int32_t first_step_ = 0;
  std::vector<size_t> begin_, end_;  // [step] in alive_
  std::vector<size_t> alive_;
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
  std::vector<size_t> in_the_way;
  for (size_t i : order) {
    const BufferLifetime& buffer = buffers[i];
    const size_t size = align_up(buffer.n_bytes, alignment);
    in_the_way.clear();
    placed.find_beside(buffer, in_the_way);
    std::ranges::sort(in_the_way, {}, [&](size_t j) { return plan.offsets[j]; });
    size_t offset = 0;
    for (size_t j : in_the_way) {
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
