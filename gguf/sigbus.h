// The SIGBUS guard of mapped files; see mapped_file.h for what it does. Internal to gguf/.
#pragma once

#include <cstddef>
#include <string>

namespace tandem {

struct SigbusRange;

// Names the bytes [begin, begin + n_bytes) after `path` until unguard_range. The first call installs the
// handler.
SigbusRange* guard_range(const void* begin, size_t n_bytes, const std::string& path);
void unguard_range(SigbusRange* range);

}  // namespace tandem
