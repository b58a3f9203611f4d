// Which device of a session: the host, or one of the GPUs beside it. (A simulated or imagined device with memory
// of its own is a GPU here.) Where things are kept by device, index() is the place, and the host is the first.
// What never is the host has a GpuId, so that no device can mean "none".
#pragma once

#include <compare>
#include <cstddef>
#include <optional>

namespace tandem {

class GpuId {
 public:
  explicit constexpr GpuId(size_t n) : n_(n) {}  // the n-th GPU, from 0

  constexpr size_t index() const { return n_ + 1; }  // among all devices
  friend constexpr auto operator<=>(const GpuId&, const GpuId&) = default;

 private:
  size_t n_;
};

class DeviceId {
 public:
  constexpr DeviceId(GpuId gpu) : index_(gpu.index()) {}
  static constexpr DeviceId host() { return DeviceId(size_t{0}); }
  static constexpr DeviceId at(size_t index) { return DeviceId(index); }

  constexpr size_t index() const { return index_; }
  constexpr bool is_host() const { return index_ == 0; }
  constexpr std::optional<GpuId> gpu() const {
    return is_host() ? std::nullopt : std::optional(GpuId(index_ - 1));
  }
  friend constexpr auto operator<=>(const DeviceId&, const DeviceId&) = default;

 private:
  explicit constexpr DeviceId(size_t index) : index_(index) {}
  size_t index_;
};

}  // namespace tandem
