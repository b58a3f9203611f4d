// Sets of Unicode characters, and their UTF-8 byte sequences. Grammars are matched byte by byte, so that a
// token may end inside a character. Pure functions; they throw only bad_alloc.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tandem {

inline constexpr uint32_t kLastCodePoint = 0x10ffff;

struct CodeRange {
  uint32_t low, high;  // both inclusive
};

// Sorts and merges the ranges, and removes surrogates, which UTF-8 cannot encode.
std::vector<CodeRange> normalized(std::vector<CodeRange> ranges);
// Returns all characters outside these normalized ranges; normalized.
std::vector<CodeRange> complement(const std::vector<CodeRange>& ranges);

struct ByteRange {
  uint8_t low, high;
};

// Matches one byte from each range, in this order.
struct ByteSequence {
  size_t n_bytes = 0;
  std::array<ByteRange, 4> bytes{};
};

// Returns sequences that together match exactly the characters of normalized ranges.
std::vector<ByteSequence> utf8_sequences(const std::vector<CodeRange>& ranges);

// Appends a character that is not a surrogate.
void append_utf8(std::string& text, uint32_t code_point);

}  // namespace tandem
