// HeldPages: the pages of a mapping that have been moved from the file to memory, at the same addresses: the system no longer
// drops them, they do not change with the file, and a driver can page-lock them as any memory.
//
// Threads: any, while others read the mapping.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <span>

namespace tandem {

class HeldPages {
 public:
  // Moves the pages that `bytes`, of a mapping, lie in, unless they have been moved. On huge pages, where the system grants them
  // and as far as the addresses allow. Returns false if the system refuses addresses for the copy; then some of the pages may
  // have been moved. Whether there is memory for it is the caller's to know.
  bool hold(std::span<const std::byte> bytes);

 private:
  std::mutex mutex_;
  std::map<std::byte*, std::byte*> held_;  // end by begin
};

}  // namespace tandem
