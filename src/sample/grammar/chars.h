// Sets of Unicode characters, and the byte sequences that UTF-8 writes them with. A grammar is matched byte
// by byte, so that a token may end anywhere inside a character. Pure functions; they throw only bad_alloc.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tandem {

inline constexpr uint32_t kLastCodePoint = 0x10ffff;

struct CodeRange {
  uint32_t low, high;  // both included
};

// Sorted, without overlaps, and without the surrogates, which no UTF-8 text has.
std::vector<CodeRange> normalized(std::vector<CodeRange> ranges);
// Every character that is not in these normalized ranges; normalized.
std::vector<CodeRange> complement(const std::vector<CodeRange>& ranges);

struct ByteRange {
  uint8_t low, high;
};

// What is written as one byte of each range, in this order.
struct ByteSequence {
  size_t n_bytes = 0;
  std::array<ByteRange, 4> bytes{};
};

// Sequences that together are exactly the characters of normalized ranges.
std::vector<ByteSequence> utf8_sequences(const std::vector<CodeRange>& ranges);

// Appends a character, which is no surrogate.
void append_utf8(std::string& text, uint32_t code_point);

}  // namespace tandem
