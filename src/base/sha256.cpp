#include "base/sha256.h"

#include <sha2.h>

namespace tandem {

Sha256 sha256(std::span<const std::byte> first, std::span<const std::byte> second) {
  SHA2_CTX state;
  SHA256Init(&state);
  for (const std::span<const std::byte> part : {first, second})
    SHA256Update(&state, reinterpret_cast<const uint8_t*>(part.data()), part.size());
  Sha256 hash{};
  SHA256Final(hash.data(), &state);
  return hash;
}

Sha256 sha256(std::string_view text) {
  return sha256(std::as_bytes(std::span(text)));
}

std::string hex_text(const Sha256& hash) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * hash.size());
  for (const uint8_t byte : hash) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace tandem
