// The cache's rows: the address of a slot's row of a head, and the conversion of floats to its dtype.
// Quantization matches gguf/quants.h bit for bit: the same operations in the same order, none contracted.
#pragma once

#include <cstdint>

#include "ggml-cuda/attention_unpack.h"
#include "ggml-cuda/portable.h"

namespace tandem::cuda {

// Row of head `head` in slot `slot`, counted in rows from the start of the pool (KvLayer in device/device.h).
TANDEM_HD inline int64_t kv_row(int64_t slot, int64_t head, int64_t n_head_kv, int64_t block_size) {
  return ((slot / block_size) * n_head_kv + head) * block_size + slot % block_size;
}

// 1 / v, or 0 when that is not a finite number.
TANDEM_HD inline float inverse_or_zero(float v) {
  const float r = 1.0f / v;
  return fabsf(r) <= 3.402823466e38f ? r : 0.0f;
}

// The nearest half, finite; NaN becomes 0.
TANDEM_HD inline fp16_t scale_to_half(float v) {
  if (v != v) return 0;
  return float_to_half(fminf(fmaxf(v, -65504.0f), 65504.0f));
}

// Truncates to 0..max; NaN gives 0.
TANDEM_HD inline int truncate_to(float v, int max) {
  if (!(v > 0.0f)) return 0;
  return v < static_cast<float>(max) ? static_cast<int>(v) : max;
}

// A block's scale from its element of largest magnitude (the first of equals, with its sign; 0 for no finite
// one).
TANDEM_HD inline float q8_0_scale(float largest) {
  return fabsf(largest) / 127.0f;
}
TANDEM_HD inline float q4_0_scale(float largest) {
  return largest / -8.0f;
}

// -127..127, ties away from zero. `inverse` is inverse_or_zero of the scale before its rounding to half.
TANDEM_HD inline int q8_0_level(float x, float inverse) {
  const float v = mul_rn(x, inverse);
  const float whole = static_cast<float>(truncate_to(fabsf(v), 127));
  const int magnitude = truncate_to(whole + (fabsf(v) - whole >= 0.5f ? 1.0f : 0.0f), 127);
  return v < 0.0f ? -magnitude : magnitude;
}

// 0..15
TANDEM_HD inline int q4_0_level(float x, float inverse) {
  return truncate_to(add_rn(mul_rn(x, inverse), 8.5f), 15);
}

// The 5-bit types likewise, with 16 for 8.
TANDEM_HD inline float q5_0_scale(float largest) {
  return largest / -16.0f;
}
TANDEM_HD inline int q5_0_level(float x, float inverse) {
  return truncate_to(add_rn(mul_rn(x, inverse), 16.5f), 31);
}

// Q4_1 and Q5_1, with max = 15 and 31: the levels between the least and the greatest element.
TANDEM_HD inline float affine_scale(float low, float high, int max) {
  return add_rn(high, -low) / static_cast<float>(max);
}
TANDEM_HD inline int affine_level(float x, float low, float inverse, int max) {
  return truncate_to(add_rn(mul_rn(add_rn(x, -low), inverse), 0.5f), max);
}

// The code of IQ4_NL whose level is nearest to v. Midpoints between levels are multiples of one half.
TANDEM_HD inline int iq4_nearest(float v) {
  const float twice = fminf(fmaxf(add_rn(mul_rn(2.0f, v), -0.5f), -256.0f), 255.0f);  // NaN gives the least
  const int quarters = 2 * static_cast<int>(rintf(twice)) + 1;  // 4 v in the middle of its half
  int code = 0;
  for (int q = 1; q < 16; ++q) code += 2 * (iq4_level(q - 1) + iq4_level(q)) < quarters ? 1 : 0;
  return code;
}
// What an element adds to the two sums whose quotient is the scale; `share` is the element over the largest one.
struct Iq4Terms {
  float xl, ll;
};
TANDEM_HD inline Iq4Terms iq4_terms(float x, float share) {
  const float w = mul_rn(share, share);
  const float level = static_cast<float>(iq4_level(iq4_nearest(mul_rn(share, -127.0f))));
  return {mul_rn(mul_rn(w, x), level), mul_rn(mul_rn(w, level), level)};
}

}  // namespace tandem::cuda
