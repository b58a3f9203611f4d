#include "text/byte_alphabet.h"

#include <array>

#include "base/utf8.h"

namespace tandem {
namespace {

constexpr int kNotALetter = -1;
constexpr uint32_t kLetterLimit = 256 + 68;

struct Alphabet {
  std::array<std::array<char, 2>, 256> letters{};  // UTF-8, one byte below U+0080 and two above
  std::array<int, kLetterLimit> bytes{};           // by code point

  constexpr Alphabet() {
    bytes.fill(kNotALetter);
    uint32_t next = 256;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool printable =
          (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
      const uint32_t letter = printable ? byte : next++;
      bytes[letter] = static_cast<int>(byte);
      if (letter < 0x80)
        letters[byte] = {static_cast<char>(letter), 0};
      else
        letters[byte] = {static_cast<char>(0xc0 | letter >> 6), static_cast<char>(0x80 | (letter & 0x3f))};
    }
  }
};

constexpr Alphabet kAlphabet;

}  // namespace

std::string_view byte_to_letter(uint8_t byte) {
  const auto& letter = kAlphabet.letters[byte];
  return {letter.data(), letter[1] == 0 ? size_t{1} : size_t{2}};
}

std::string letters_to_bytes(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t n = next_utf8(text).n_bytes;
    const auto first = static_cast<uint8_t>(text[0]);
    uint32_t letter = kLetterLimit;
    if (n == 1 && first < 0x80) letter = first;
    if (n == 2) letter = (first & 0x1fu) << 6 | (static_cast<uint8_t>(text[1]) & 0x3fu);
    if (letter < kLetterLimit && kAlphabet.bytes[letter] != kNotALetter) {
      out += static_cast<char>(kAlphabet.bytes[letter]);
    } else {
      out += text.substr(0, n);
    }
    text.remove_prefix(n);
  }
  return out;
}

void append_letters(std::string_view bytes, std::string& out) {
  for (const char c : bytes) out += byte_to_letter(static_cast<uint8_t>(c));
}

}  // namespace tandem
