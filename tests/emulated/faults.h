// Failures that tests of the emulated GPU ask for.
#pragma once

#include <cstdint>

namespace emulator {

// The n-th copy from host memory from now on (the next is 0) fails; -1: none does.
void fail_copy_from_host(int64_t n);

}  // namespace emulator
