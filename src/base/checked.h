// Arithmetic on untrusted integers. Every size, count and offset that comes from a file goes through here.
#pragma once

#include <cstdint>
#include <optional>

namespace tandem {

// nullopt on overflow.
inline std::optional<uint64_t> checked_add(uint64_t a, uint64_t b) {
  uint64_t r;
  if (__builtin_add_overflow(a, b, &r)) return std::nullopt;
  return r;
}

inline std::optional<uint64_t> checked_mul(uint64_t a, uint64_t b) {
  uint64_t r;
  if (__builtin_mul_overflow(a, b, &r)) return std::nullopt;
  return r;
}

// Rounds `a` up to a multiple of `alignment` (a power of two or not, never 0). nullopt on overflow.
inline std::optional<uint64_t> checked_align(uint64_t a, uint64_t alignment) {
  const uint64_t rest = a % alignment;
  return rest == 0 ? std::optional<uint64_t>(a) : checked_add(a, alignment - rest);
}

// For trusted sizes.
constexpr size_t align_up(size_t a, size_t alignment) {
  return (a + alignment - 1) / alignment * alignment;
}
constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace tandem
