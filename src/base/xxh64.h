// XXH64, a checksum of 64 bits that is faster than memory (https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md).
// Against damage, not against forgers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tandem {

// With the seed 0, on little-endian machines.
uint64_t xxh64(std::span<const std::byte> bytes);

}  // namespace tandem
