// SHA-256 (FIPS 180-4), for names that nobody can forge: the same name means the same content.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tandem {

using Sha256 = std::array<uint8_t, 32>;

// The hash of these bytes one after the other.
Sha256 sha256(std::span<const std::byte> first, std::span<const std::byte> second = {});
Sha256 sha256(std::string_view text);

// "e3b0c442...", 64 digits in lower case
std::string hex_text(const Sha256& hash);

}  // namespace tandem
