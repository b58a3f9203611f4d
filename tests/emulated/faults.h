// Injected failures of the software GPU.
#pragma once

#include <cstdint>

namespace emulator {

// Makes the n-th copy from host memory from now on (the next is 0) fail; -1: none.
void fail_copy_from_host(int64_t n);
// The same for the records of events.
void fail_event_record(int64_t n);
// The same for page-locking host memory where it is.
void fail_register(int64_t n);

}  // namespace emulator
