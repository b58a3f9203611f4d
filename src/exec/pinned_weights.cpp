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
  const size_t n_bytes = weight.n_bytes();
  Range& range = weights_[{&device, {weight.data, n_bytes}}];
  range.fetched_bytes += fetched_bytes;
  if (range.fetched_bytes <= kFetchesBefore * n_bytes) return;
  while (!refused_ && range.pinned_bytes < n_bytes && left_ > 0) {
    const std::span<const std::byte> more(weight.data + range.pinned_bytes,
                                          std::min(kWeightChunk, n_bytes - range.pinned_bytes));
    refused_ = !hold_(more) || !pin(device, range, more);
  }
}

void PinnedWeights::fetching_pool(Device& device, const std::byte* pool, size_t n_bytes, size_t capacity) {
  step_bytes_ += n_bytes;
  Range& range = pools_[{&device, pool}];
  range.fetched_bytes += n_bytes;
  if (refused_ || n_bytes <= range.pinned_bytes) return;
  const bool goes_on = range.pinned_bytes > 0;  // at once: a fetch is from page-locked memory as a whole, or not
  if (!goes_on && (range.fetched_bytes <= kFetchesBefore * n_bytes || left_ == 0)) return;
  const size_t end = std::min(capacity, align_up(n_bytes, kPoolChunk));
  refused_ = !pin(device, range, {pool + range.pinned_bytes, end - range.pinned_bytes});
}

bool PinnedWeights::pin(Device& device, Range& range, std::span<const std::byte> more) {
  left_ -= std::min(left_, more.size());
  std::shared_ptr<const void> pinned = device.pin(more);
  if (!pinned) {
    log_verbose("{}: {} bytes of host memory are page-locked; no more can be, so the CPU copies the rest",
                device.info().name, n_bytes_);
    return false;
  }
  range.pinned.push_back(std::move(pinned));
  range.pinned_bytes += more.size();
  n_bytes_ += more.size();
  return true;
}

}  // namespace tandem
