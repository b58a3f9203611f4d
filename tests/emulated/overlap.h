// Kernels that may begin before the ones before them have ended (programmatic dependent launch): what such a kernel
// reads, before it waits, of memory that those write, is not there yet. A block therefore runs up to its wait with NaN in
// the place of everything that they have changed, and may write nothing.
//
// Device memory is read-only while kernels run; the first write to a page keeps what the page held, so that changes are
// known afterwards. Everything here runs under the runtime's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace emulator {

// Device memory, in whole pages.
void watch(std::byte* pages, size_t n_bytes);
void unwatch(std::byte* pages);
// The caller is about to write there: not a kernel's write.
void allow_writes(void* at, size_t n_bytes);

// Words that a kernel has changed.
struct Run {
  uint32_t* at;
  size_t n;
};
using Changes = std::vector<Run>;

// Around a kernel.
void begin_changes();
Changes end_changes();

// Around the part of a block before its wait: fills the words with NaN, and gives them back.
class Hidden {
 public:
  void hide(const std::vector<Changes>& changes);
  void reveal();

 private:
  Changes runs_;
  std::vector<uint32_t> words_;
};

}  // namespace emulator
