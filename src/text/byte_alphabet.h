// The byte alphabet of byte-level BPE: printable Latin-1 bytes map to themselves, the other 68 bytes to
// U+0100 and up, in order. (Radford et al., GPT-2, 2019.)
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem {

// Returns the UTF-8 of the letter for `byte`.
std::string_view byte_to_letter(uint8_t byte);

// Converts a token's text to bytes. Characters outside the alphabet are copied.
std::string letters_to_bytes(std::string_view text);

// Appends the letters for `bytes`.
void append_letters(std::string_view bytes, std::string& out);

}  // namespace tandem
