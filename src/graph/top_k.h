// The order of top_k (graph/ops.h) as one integer for a value and its column, so that all devices agree on ties and NaN: NaN
// first, then by descending value, -0 equal to 0, of equal ones the lower column first. No two columns have the same key.
//
// For kernels too: no library calls.
#pragma once

#include <cstdint>

namespace tandem {

// A device has room for so many.
inline constexpr int64_t kMaxTopK = 64;

// `bits` are those of an F32; the greater key comes first. No key is 0.
constexpr uint64_t top_key(uint32_t bits, uint32_t column) {
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const uint32_t value = bits == 0x80000000u ? 0 : bits;
  const uint32_t order = is_nan ? 0xffffffffu : (value & 0x80000000u) != 0 ? ~value : value | 0x80000000u;
  return uint64_t{order} << 32 | (0xffffffffu - column);
}

constexpr uint32_t column_of_key(uint64_t key) {
  return 0xffffffffu - static_cast<uint32_t>(key);
}

// The bits of the value; of any NaN those of one of them.
constexpr uint32_t bits_of_key(uint64_t key) {
  const auto order = static_cast<uint32_t>(key >> 32);
  return (order & 0x80000000u) != 0 ? order & 0x7fffffffu : ~order;
}

}  // namespace tandem
