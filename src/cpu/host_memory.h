// Host memory in whole pages: zeroed, page-aligned, on huge pages where the system grants them. Large buffers
// use it instead of the heap, so they go back to the system at once and share no page with other data.
#pragma once

#include <cstddef>
#include <utility>

#include "device/device.h"

namespace tandem::cpu {

class HostMemory {
 public:
  HostMemory() = default;
  explicit HostMemory(size_t n_bytes);  // throws Error(out_of_memory)
  ~HostMemory();
  HostMemory(HostMemory&& other) noexcept { swap(other); }
  HostMemory& operator=(HostMemory&& other) noexcept {
    swap(other);
    return *this;
  }

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void swap(HostMemory& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Reads MemAvailable and MemTotal from /proc/meminfo, limited by the control group.
MemoryInfo host_memory_info();

}  // namespace tandem::cpu
