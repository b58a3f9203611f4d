// A seed from the system's random numbers.
#pragma once

#include <cstdint>

namespace tandem {

// Differs from call to call and from process to process. Any thread; never fails: without the system's random numbers it
// falls back to the clock. (Not std::random_device: GCC 12's needs a newer C library than the program otherwise does.)
uint64_t random_seed();

}  // namespace tandem
