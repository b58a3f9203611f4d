#include "base/xxh64.h"

#include <bit>
#include <cstring>

namespace tandem {
namespace {

constexpr uint64_t kPrime1 = 0x9e3779b185ebca87, kPrime2 = 0xc2b2ae3d27d4eb4f, kPrime3 = 0x165667b19e3779f9,
                   kPrime4 = 0x85ebca77c2b2ae63, kPrime5 = 0x27d4eb2f165667c5;

template <class Number>
uint64_t read(const std::byte* at) {
  Number number;
  std::memcpy(&number, at, sizeof number);
  return number;
}

uint64_t mixed(uint64_t lane, uint64_t input) {
  return std::rotl(lane + input * kPrime2, 31) * kPrime1;
}

}  // namespace

uint64_t xxh64(std::span<const std::byte> bytes) {
  constexpr ptrdiff_t kStripe = 32;
  const std::byte* at = bytes.data();
  const std::byte* const end = at + bytes.size();
  uint64_t hash = kPrime5;
  if (end - at >= kStripe) {
    uint64_t lanes[] = {kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1};
    for (; end - at >= kStripe; at += kStripe) {
      for (int i = 0; i < 4; ++i) lanes[i] = mixed(lanes[i], read<uint64_t>(at + 8 * i));
    }
    hash = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) + std::rotl(lanes[3], 18);
    for (const uint64_t lane : lanes) hash = (hash ^ mixed(0, lane)) * kPrime1 + kPrime4;
  }
  hash += bytes.size();
  for (; end - at >= 8; at += 8) hash = std::rotl(hash ^ mixed(0, read<uint64_t>(at)), 27) * kPrime1 + kPrime4;
  if (end - at >= 4) {
    hash = std::rotl(hash ^ (read<uint32_t>(at) * kPrime1), 23) * kPrime2 + kPrime3;
    at += 4;
  }
  for (; at < end; ++at) hash = std::rotl(hash ^ (read<uint8_t>(at) * kPrime5), 11) * kPrime1;
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

}  // namespace tandem
