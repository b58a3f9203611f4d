// How far the header of a GGUF file reaches: everything before the tensor data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace tandem::tools {

// Walks over metadata and tensor table in the first bytes of a file. nullopt: the header goes on after them. A header that
// is not valid counts as complete: the parser that reads it then says what is wrong. Linear in the bytes.
std::optional<uint64_t> gguf_header_end(std::span<const std::byte> start);

}  // namespace tandem::tools
