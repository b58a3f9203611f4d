// UTF-8, one character at a time, over bytes that may be anything. Pure functions, no allocation, nothing
// thrown.
#pragma once

#include <cstddef>
#include <string_view>

namespace tandem {

enum class Utf8Status {
  valid,       // n_bytes are one character
  invalid,     // n_bytes can never be part of a character (the longest such run that one U+FFFD replaces)
  incomplete,  // the text ends inside a character that is well-formed so far; n_bytes is all that is left
};

struct Utf8Step {
  size_t n_bytes;
  Utf8Status status;
};

// What the text starts with. Refuses overlong forms, surrogates and code points past U+10FFFF. `text` is not
// empty.
Utf8Step next_utf8(std::string_view text);

// Bytes of the longest prefix that is valid UTF-8; text.size() when all of it is.
size_t valid_utf8_prefix(std::string_view text);

inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";  // U+FFFD

}  // namespace tandem
