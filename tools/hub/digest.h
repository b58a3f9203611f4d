// The hashes by which the hub names contents: sha256 of a large file, git's sha1 of a small one.
#pragma once

#include <sha1.h>
#include <sha2.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

namespace tandem::tools {

// Whether `text` is a hash: 40 or 64 hexadecimal digits, in lower case.
bool is_object_id(std::string_view text);

// The hash that `object_id` is one of, of a content of n_bytes.
class Digest {
 public:
  Digest(std::string_view object_id, uint64_t n_bytes);
  void add(std::span<const std::byte> bytes);
  std::string hex();         // once, at the end
  const char* name() const;  // "sha256"

 private:
  std::variant<SHA2_CTX, SHA1_CTX> state_;
};

// sha256 of a text, in hexadecimal.
std::string sha256_hex(std::string_view text);

}  // namespace tandem::tools
