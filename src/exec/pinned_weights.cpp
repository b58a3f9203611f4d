#include "exec/pinned_weights.h"

#include <algorithm>
#include <utility>

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
  refused_ = true;
  log_verbose("{}: {} bytes of streamed weights are page-locked; no more can be, so the CPU copies the others",
              device.info().name, n_bytes_);
}

}  // namespace tandem
