// Prefetching what the next rounds read of caches: into L1, or only into L2.
#pragma once

#include <immintrin.h>

#include <cstddef>

#include "base/fp16.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// Only into L2 on a Zen 4 (and on a Zen 3, of the same family, which has not been measured). What is fetched some KB ahead crowds
// its L1 of 32 KB, and its core waits for few lines of L1 at a time: attention read 9 GB/s of a cache in memory, where plain loads
// read 20, and reads 15 so (heads of 128 columns, one query and one core: F16 10 and 18, Q8_0 8 and 15, Q4_0 8 and 11). A Zen 5,
// with 48 KB, took a third longer with L2.
TANDEM_INLINE bool fetches_into_l2() {
  return __builtin_cpu_is("amdfam19h");
}

// The lines of some bytes, which need not be there: unrolled.
template <int n_bytes>
TANDEM_INLINE void fetch_lines(const void* from) {
  const char* p = static_cast<const char*>(from);
  if (fetches_into_l2()) {
#pragma GCC unroll 16
    for (int b = 0; b < n_bytes; b += 64) _mm_prefetch(p + b, _MM_HINT_T1);
  } else {
#pragma GCC unroll 16
    for (int b = 0; b < n_bytes; b += 64) _mm_prefetch(p + b, _MM_HINT_T0);
  }
}
// The same in a loop: code that is too long when unrolled is slower.
TANDEM_INLINE void fetch_lines(const void* from, size_t n_bytes) {
  const char* p = static_cast<const char*>(from);
  if (fetches_into_l2()) {
#pragma GCC unroll 1
    for (size_t b = 0; b < n_bytes; b += 64) _mm_prefetch(p + b, _MM_HINT_T1);
  } else {
#pragma GCC unroll 1
    for (size_t b = 0; b < n_bytes; b += 64) _mm_prefetch(p + b, _MM_HINT_T0);
  }
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
