// Pages: zeroed memory of its own to measure with, in huge pages where the system grants them, as the slots of layers
// are: direct reads go faster where memory is in few pieces. Throws Error(out_of_memory).
#pragma once

#include <sys/mman.h>

#include <cstddef>

#include "base/error.h"

namespace tandem {

class Pages {
 public:
  explicit Pages(size_t n_bytes) : n_bytes_(n_bytes) {
    void* p = mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
      throw_error(ErrorCode::out_of_memory, "measuring speeds: cannot allocate {} bytes", n_bytes);
    }
    madvise(p, n_bytes, MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(p);
  }
  ~Pages() { munmap(data_, n_bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
  size_t n_bytes_;
};

}  // namespace tandem
