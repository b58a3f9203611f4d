// How fast this machine reads memory: the roof over decoding, which reads every weight once a token.
#pragma once

#include <cstddef>

#include "base/thread_pool.h"

namespace tandem {

// A buffer that caches hold little of, and that is not much of `free_bytes`.
size_t bandwidth_buffer_bytes(size_t free_bytes);

// Bytes per second at which all workers of the pool together read a buffer of n_bytes from end to end; the
// best of several passes, so that a busy machine does little harm. Takes a fraction of a second, and n_bytes
// of memory while it runs. Call it from the thread that may run the pool. Throws Error(out_of_memory).
double measure_read_bandwidth(ThreadPool& pool, size_t n_bytes);

}  // namespace tandem
