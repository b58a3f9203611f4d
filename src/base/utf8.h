// UTF-8, one character at a time, over arbitrary bytes. Pure functions; nothing is allocated or thrown.
#pragma once

#include <cstddef>
#include <string_view>

namespace tandem {

enum class Utf8Status {
  valid,       // n_bytes are one character
  invalid,     // n_bytes are not UTF-8: the longest run that one U+FFFD replaces
  incomplete,  // the text ends inside a character, well-formed so far; n_bytes are the rest
};

struct Utf8Char {
  size_t n_bytes;
  Utf8Status status;
};

// Reads the first character of `text`, which is not empty. Rejects overlong forms, surrogates and code points
// past U+10FFFF.
Utf8Char next_utf8(std::string_view text);

// Returns the length in bytes of the longest prefix that is valid UTF-8.
size_t valid_utf8_prefix(std::string_view text);

inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";  // U+FFFD

}  // namespace tandem
