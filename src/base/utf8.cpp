#include "base/utf8.h"

#include <cstdint>
#include <cstring>

namespace tandem {
namespace {

// The bytes that may follow a first byte: how many, and the range of the second one.
struct Lead {
  uint8_t n_following;  // with low > high: not a first byte
  uint8_t low, high;
};

constexpr Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {0, 0, 0};
  if (byte < 0xc2) return {0, 1, 0};
  if (byte < 0xe0) return {1, 0x80, 0xbf};
  if (byte == 0xe0) return {2, 0xa0, 0xbf};  // below: overlong forms
  if (byte == 0xed) return {2, 0x80, 0x9f};  // above: surrogates
  if (byte < 0xf0) return {2, 0x80, 0xbf};
  if (byte == 0xf0) return {3, 0x90, 0xbf};
  if (byte < 0xf4) return {3, 0x80, 0xbf};
  if (byte == 0xf4) return {3, 0x80, 0x8f};  // above: past U+10FFFF
  return {0, 1, 0};
}

}  // namespace

Utf8Char next_utf8(std::string_view text) {
  const Lead lead = lead_of(static_cast<uint8_t>(text[0]));
  if (lead.low > lead.high) return {1, Utf8Status::invalid};
  size_t n = 1;
  for (; n <= lead.n_following; ++n) {
    if (n == text.size()) return {n, Utf8Status::incomplete};
    const auto byte = static_cast<uint8_t>(text[n]);
    const uint8_t low = n == 1 ? lead.low : 0x80, high = n == 1 ? lead.high : 0xbf;
    if (byte < low || byte > high) return {n, Utf8Status::invalid};
  }
  return {n, Utf8Status::valid};
}

size_t valid_utf8_prefix(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    uint64_t eight;
    if (i + sizeof eight <= text.size()) {  // plain ASCII goes eight bytes at a time
      std::memcpy(&eight, text.data() + i, sizeof eight);
      if ((eight & 0x8080808080808080u) == 0) {
        i += sizeof eight;
        continue;
      }
    }
    const Utf8Char next = next_utf8(text.substr(i));
    if (next.status != Utf8Status::valid) break;
    i += next.n_bytes;
  }
  return i;
}

}  // namespace tandem
