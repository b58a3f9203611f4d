// Contents for the hub of hub_server.h.
#pragma once

#include <cstdint>
#include <random>
#include <string>

namespace tandem::test {

// The same bytes for the same seed.
inline std::string random_bytes(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::string bytes(n, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

}  // namespace tandem::test
