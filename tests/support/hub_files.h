// Contents for the hub of hub_server.h.
#pragma once

#include <cstdint>
#include <fstream>
#include <iterator>
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

// All of a file; "" if it does not exist.
inline std::string file_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace tandem::test
