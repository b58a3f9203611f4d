#include "cpu/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "base/checked.h"
#include "base/error.h"

namespace tandem::cpu {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = 2u << 20;

// The part of the control group's usage that is file cache, which the kernel reclaims on demand.
unsigned long long reclaimable_bytes() {
  unsigned long long sum = 0;
  if (FILE* f = fopen("/sys/fs/cgroup/memory.stat", "r")) {
    char line[256];
    unsigned long long n = 0;
    while (fgets(line, sizeof line, f)) {
      if (sscanf(line, "inactive_file %llu", &n) == 1 || sscanf(line, "active_file %llu", &n) == 1) sum += n;
    }
    fclose(f);
  }
  return sum;
}

}  // namespace

HostMemory::HostMemory(size_t n_bytes) : size_(n_bytes) {
  const auto rounded = checked_align(std::max<size_t>(n_bytes, 1), kPage);
  void* p = rounded ? mmap(nullptr, *rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                    : MAP_FAILED;
  if (p == MAP_FAILED) {
    const size_t available = host_memory_info().free_bytes;
    const std::string why = n_bytes > available
                                ? std::to_string(available) + " bytes of memory are available"
                                : "the system's limit for this process is reached, see ulimit -v";
    throw_error(ErrorCode::out_of_memory, "CPU: cannot allocate {} bytes ({})", n_bytes, why);
  }
  if (n_bytes >= kHugePage) madvise(p, *rounded, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(p);
}

HostMemory::~HostMemory() {
  if (data_) munmap(data_, align_up(std::max<size_t>(size_, 1), kPage));
}

MemoryInfo host_memory_info() {
  MemoryInfo info;
  if (FILE* f = fopen("/proc/meminfo", "r")) {
    char line[256];
    unsigned long long kib = 0;
    while (fgets(line, sizeof line, f)) {
      if (sscanf(line, "MemTotal: %llu", &kib) == 1) info.total_bytes = kib << 10;
      if (sscanf(line, "MemAvailable: %llu", &kib) == 1) info.free_bytes = kib << 10;
    }
    fclose(f);
  }
  unsigned long long limit = 0, used = 0;
  FILE* max = fopen("/sys/fs/cgroup/memory.max", "r");
  FILE* current = fopen("/sys/fs/cgroup/memory.current", "r");
  if (max && current && fscanf(max, "%llu", &limit) == 1 && fscanf(current, "%llu", &used) == 1) {
    info.total_bytes = std::min<size_t>(info.total_bytes, limit);
    used -= std::min(used, reclaimable_bytes());
    info.free_bytes = std::min<size_t>(info.free_bytes, limit > used ? limit - used : 0);
  }
  if (max) fclose(max);
  if (current) fclose(current);
  return info;
}

}  // namespace tandem::cpu
