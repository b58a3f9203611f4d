// PinnedWeights: weights that are brought to GPUs again and again, streamed ones and experts, move to page-locked memory, from
// where the bus reads them without a copy by the CPU: that takes half of the time or less, and a third of the host memory's
// bandwidth. Moving them costs as much as some fetches, so it begins with those of which a few times their size has been
// fetched, and is spread over steps. They stay at their addresses, and the CPU goes on computing with them. The used part of a
// cache that GPUs fetch is page-locked too, as it grows.
//
// One thread. Weights keep their addresses for as long as this lives.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "device/device.h"

namespace tandem {

// Moves bytes of weights from a mapped file to memory, at the same addresses; returns false if there is no memory.
using HoldBytes = std::function<bool(std::span<const std::byte>)>;

class PinnedWeights {
 public:
  explicit PinnedWeights(HoldBytes hold) : hold_(std::move(hold)) {}

  void begin_step();
  // A weight in host memory, or n_bytes of it, are about to be fetched to a device.
  void fetching(Device& device, const Weight& weight) { fetching(device, weight, weight.n_bytes()); }
  void fetching(Device& device, const Weight& weight, size_t n_bytes);

  // The first n_bytes of the `capacity` of a pool of a cache, in memory that is not a file's, are about to be fetched.
  void fetching_pool(Device& device, const std::byte* pool, size_t n_bytes, size_t capacity);

  size_t n_bytes() const { return n_bytes_; }  // pinned, counted once for each device

  // How many times the bytes of a weight are fetched before it is moved, which costs as much as a few fetches.
  static constexpr size_t kFetchesBefore = 4;
  // Of what a step fetches, the part that may be moved in a step; and bytes that may be in any. Both but for a chunk.
  static constexpr size_t kStepParts = 8, kStepBytes = size_t{256} << 20;
  // Weights are moved in chunks of so many bytes, pools page-locked.
  static constexpr size_t kWeightChunk = size_t{64} << 20, kPoolChunk = size_t{16} << 20;

 private:
  struct Range {
    size_t fetched_bytes = 0, pinned_bytes = 0;  // pinned: from its beginning
    std::vector<std::shared_ptr<const void>> pinned;
  };
  using Bytes = std::pair<const std::byte*, size_t>;
  bool pin(Device& device, Range& range, std::span<const std::byte> more);

  HoldBytes hold_;
  std::map<std::pair<Device*, Bytes>, Range> weights_;
  std::map<std::pair<Device*, const std::byte*>, Range> pools_;
  size_t step_bytes_ = 0;  // fetched in this step so far
  size_t left_ = 0;        // bytes that may be moved in this step
  size_t n_bytes_ = 0;
  bool refused_ = false;  // once there is no memory, or a driver does not want to, nothing more is moved
};

}  // namespace tandem
