#include "exec/pinned_weights.h"

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "base/log.h"

namespace tandem {

void PinnedWeights::begin_step() {
  left_ = std::max(kStepBytes, std::exchange(step_bytes_, 0) / kStepParts);
}

void PinnedWeights::fetching(Device& device, const Weight& weight, size_t fetched_bytes) {
  step_bytes_ += fetched_bytes;
  if (refused_) return;
  const size_t n_bytes = weight.n_bytes();
  Known& known = known_[{&device, {weight.data, n_bytes}}];
  if (known.pinned) return;
  known.fetched_bytes += fetched_bytes;
  if (known.fetched_bytes <= kFetchesBefore * n_bytes || left_ == 0) return;
  left_ -= std::min(left_, n_bytes);
  const std::span<const std::byte> bytes(weight.data, n_bytes);
  if (hold_(bytes)) known.pinned = device.pin(bytes);
  if (known.pinned) {
    n_bytes_ += n_bytes;
    return;
  }
  refuse(device);
}

void PinnedWeights::fetching_pool(Device& device, const std::byte* pool, size_t n_bytes, size_t capacity) {
  step_bytes_ += n_bytes;
  Pool& known = pools_[{&device, pool}];
  known.fetched_bytes += n_bytes;
  const bool goes_on = known.pinned_bytes > 0;  // at once: a fetch is from page-locked memory as a whole, or not
  if (refused_ || n_bytes <= known.pinned_bytes) return;
  if (!goes_on && (known.fetched_bytes <= kFetchesBefore * n_bytes || left_ == 0)) return;
  const size_t end = std::min(capacity, align_up(n_bytes, kPoolChunk)), n_more = end - known.pinned_bytes;
  left_ -= std::min(left_, n_more);
  known.pinned.push_back(device.pin({pool + known.pinned_bytes, n_more}));
  if (!known.pinned.back()) return refuse(device);
  known.pinned_bytes = end;
  n_bytes_ += n_more;
}

void PinnedWeights::refuse(const Device& device) {
  refused_ = true;
  log_verbose("{}: {} bytes of host memory are page-locked; no more can be, so the CPU copies the rest",
              device.info().name, n_bytes_);
}

}  // namespace tandem
