// A small random generator (xoshiro256++, seeded by splitmix64) with the same results on every machine,
// unlike the standard library's distributions. For synthetic data only.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace tandem::tools {

class Random {
 public:
  explicit Random(uint64_t seed) {
    for (uint64_t& word : state_) word = split(seed);
  }

  uint64_t next() {
    const uint64_t result = std::rotl(state_[0] + state_[3], 23) + state_[0];
    const uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  // Uniform in 0..n - 1. 0 < n, and n far below 2^32.
  uint32_t below(uint32_t n) { return static_cast<uint32_t>((next() >> 32) * n >> 32); }
  // Uniform in [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  void fill(std::span<std::byte> bytes) {
    size_t i = 0;
    for (; i + 8 <= bytes.size(); i += 8) {
      const uint64_t word = next();
      std::memcpy(bytes.data() + i, &word, 8);
    }
    if (i < bytes.size()) {
      const uint64_t word = next();
      std::memcpy(bytes.data() + i, &word, bytes.size() - i);
    }
  }

 private:
  static uint64_t split(uint64_t& seed) {
    uint64_t z = seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  uint64_t state_[4];
};

}  // namespace tandem::tools
