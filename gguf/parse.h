// Parses and validates one GGUF file in memory. Internal to gguf/; the public interface is file.h.
// This is the whole contract for untrusted bytes: the result of parse_gguf is safe to use without further
// checks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gguf/file.h"
#include "gguf/metadata.h"

namespace tandem {

struct ParsedGguf {
  uint32_t version = 0;
  uint64_t alignment = 0;
  Metadata metadata;                // views into the bytes
  std::vector<TensorInfo> tensors;  // views into the bytes; part is 0
};

// Throws Error(bad_file) with a message that starts with `path`. Guarantees:
// - metadata: keys unique, values complete and of known types, arrays flat, bools 0 or 1;
// - alignment: a power of two from 8 to 2^24;
// - tensors: names unique, 1..4 dimensions each > 0, known dtype, rows of whole blocks, element and byte
//   counts below 2^63, data aligned, inside the file and not overlapping.
ParsedGguf parse_gguf(std::span<const std::byte> bytes, const std::string& path);

}  // namespace tandem
