// Copies of memory that is not read again by the CPU, for devices to take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace tandem {

// As memcpy, but what is written goes past the caches, so that its lines are not read before: two thirds of the traffic of a
// copy that does not fit in them. Complete, for others too, on return. Fastest where `to` is a multiple of 64.
inline void copy_past_cache(std::byte* to, const std::byte* from, size_t n_bytes) {
  size_t at = 0;
#ifdef __SSE2__
  if (reinterpret_cast<uintptr_t>(to) % 16 == 0) {
    for (; at + 64 <= n_bytes; at += 64) {
      __m128i line[4];
      for (int i = 0; i < 4; ++i) line[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at) + i);
      for (int i = 0; i < 4; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(to + at) + i, line[i]);
    }
    _mm_sfence();
  }
#endif
  if (at < n_bytes) std::memcpy(to + at, from + at, n_bytes - at);
}

}  // namespace tandem
