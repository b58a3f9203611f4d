#include "tools/hub/digest.h"

#include "base/error.h"

namespace tandem::tools {
namespace {

std::string hex_of(std::span<const uint8_t> bytes) {
  std::string text;
  for (const uint8_t byte : bytes) text += format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

}  // namespace

bool is_object_id(std::string_view text) {
  return (text.size() == 40 || text.size() == 64) && text.find_first_not_of("0123456789abcdef") == text.npos;
}

Digest::Digest(std::string_view object_id, uint64_t n_bytes) {
  if (object_id.size() == 64) {
    SHA256Init(&state_.emplace<SHA2_CTX>());
    return;
  }
  SHA1Init(&state_.emplace<SHA1_CTX>());
  const std::string head = "blob " + std::to_string(n_bytes) + '\0';
  add(std::as_bytes(std::span(head)));
}

void Digest::add(std::span<const std::byte> bytes) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  if (auto* sha256 = std::get_if<SHA2_CTX>(&state_)) return SHA256Update(sha256, data, bytes.size());
  SHA1Update(std::get_if<SHA1_CTX>(&state_), data, bytes.size());
}

std::string Digest::hex() {
  if (auto* sha256 = std::get_if<SHA2_CTX>(&state_)) {
    uint8_t hash[SHA256_DIGEST_LENGTH];
    SHA256Final(hash, sha256);
    return hex_of(hash);
  }
  uint8_t hash[SHA1_DIGEST_LENGTH];
  SHA1Final(hash, std::get_if<SHA1_CTX>(&state_));
  return hex_of(hash);
}

const char* Digest::name() const {
  return std::holds_alternative<SHA2_CTX>(state_) ? "sha256" : "sha1";
}

std::string sha256_hex(std::string_view text) {
  Digest digest(std::string(64, '0'), text.size());
  digest.add(std::as_bytes(std::span(text)));
  return digest.hex();
}

}  // namespace tandem::tools
