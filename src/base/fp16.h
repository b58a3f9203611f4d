// IEEE half and bfloat16 as plain 16-bit integers, converted exactly in software, round to nearest even.
// This is the reference; kernels use the hardware's instructions instead.
#pragma once

#include <bit>
#include <cstdint>

// Always inlined: translation units for different instruction sets include this header, and the linker must
// not pick one copy for all of them.
#define TANDEM_INLINE [[gnu::always_inline]] inline

namespace tandem {

using fp16_t = uint16_t;
using bf16_t = uint16_t;

TANDEM_INLINE constexpr float fp16_to_fp32(fp16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t exponent = (h >> 10) & 0x1f;
  const uint32_t mantissa = h & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // subnormal or zero, exact
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

TANDEM_INLINE constexpr fp16_t fp32_to_fp16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<fp16_t>(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff));  // NaN
  if (magnitude >= 0x477ff000) return static_cast<fp16_t>(sign | 0x7c00);  // rounds to infinity
  if (magnitude < 0x38800000) {  // subnormal result: let the float adder do the rounding
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<fp16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return static_cast<fp16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

TANDEM_INLINE constexpr float bf16_to_fp32(bf16_t h) {
  return std::bit_cast<float>(static_cast<uint32_t>(h) << 16);
}

TANDEM_INLINE constexpr bf16_t fp32_to_bf16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<bf16_t>((bits >> 16) | 0x40);  // quiet NaN
  return static_cast<bf16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace tandem
