// The alphabet in which byte-level BPE writes bytes: printable Latin-1 stands for itself, the other 68 bytes
// for U+0100 and up, in order. (Radford et al., GPT-2, 2019.)
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem {

// UTF-8 of the character that stands for `byte`.
std::string_view byte_to_letter(uint8_t byte);

// The bytes that a token's text stands for. Characters outside the alphabet stand for themselves.
std::string letters_to_bytes(std::string_view text);

// Appends the letters of `bytes`.
void append_letters(std::string_view bytes, std::string& out);

}  // namespace tandem
