// SIGBUS guard of mapped files; mapped_file.h describes it. Internal to gguf/.
#pragma once

#include <cstddef>
#include <string>

namespace tandem {

struct SigbusRange;

// Reports faults in [begin, begin + n_bytes) as errors of `path`, until unguard_range. The first call
// installs the handler.
SigbusRange* guard_range(const void* begin, size_t n_bytes, const std::string& path);
void unguard_range(SigbusRange* range);

}  // namespace tandem
