// DeviceId: a device of a session, the host or one of its GPUs. A simulated or imagined device with its own
// memory counts as a GPU. index() is the position in arrays by device; the host is first. GpuId is for
// values that are never the host, so the host never has to double as "none".
#pragma once

#include <compare>
#include <cstddef>
#include <optional>

namespace tandem {

class GpuId {
 public:
  explicit constexpr GpuId(size_t n) : n_(n) {}  // GPU number n, from 0

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
