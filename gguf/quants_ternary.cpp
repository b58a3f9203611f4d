// TQ1_0 and TQ2_0: -1, 0 or 1 times the largest magnitude of the block. Q1_0: the sign times the mean magnitude.
#include <cmath>
#include <cstring>

#include "gguf/blocks_k.h"
#include "gguf/quants_fit.h"

namespace tandem::quants {
namespace {

// Returns the scale and fills codes [256] with 0..2. Halves are rounded away from zero.
float ternary_codes(const float* x, uint8_t* codes) {
  const float d = std::fabs(signed_max(x, QK_K)), id = inverse(d);
  for (int e = 0; e < QK_K; ++e) {
    const float v = x[e] * id;
    codes[e] = v >= 0.5f ? 2 : v <= -0.5f ? 0 : 1;
  }
  return d;
}

// Returns the byte whose leading ternary digits are codes[0], codes[stride], ...: the least fraction of 256 with them.
uint8_t pack_digits(const uint8_t* codes, int n, int stride) {
  int value = 0;
  for (int i = 0; i < 5; ++i) value = 3 * value + (i < n ? codes[i * stride] : 0);
  return static_cast<uint8_t>((value * 256 + 242) / 243);
}

}  // namespace

// The scale is given, so importance has no say.
void quantize(const float* x, BlockTQ2_0* to, int64_t n, const float*) {
  for (int64_t b = 0; b < n / QK_K; ++b, x += QK_K) {
    uint8_t codes[QK_K];
    to[b].d = to_scale(ternary_codes(x, codes));
    pack_two_bits(codes, to[b].qs);
  }
}

void quantize(const float* x, BlockTQ1_0* to, int64_t n, const float*) {
  for (int64_t b = 0; b < n / QK_K; ++b, x += QK_K) {
    uint8_t codes[QK_K];
    to[b].d = to_scale(ternary_codes(x, codes));
    for (int j = 0; j < 32; ++j) to[b].qs[j] = pack_digits(codes + j, 5, 32);
    for (int j = 0; j < 16; ++j) to[b].qs[32 + j] = pack_digits(codes + 160 + j, 5, 16);
    for (int j = 0; j < 4; ++j) to[b].qh[j] = pack_digits(codes + 240 + j, 4, 4);
  }
}

// The weighted mean of the magnitudes has the least weighted squared error.
void quantize(const float* x, BlockQ1_0* to, int64_t n, const float* importance) {
  constexpr int kElements = BlockQ1_0::kElements;
  for (int64_t b = 0; b < n / kElements; ++b, x += kElements) {
    float sum = 0.0f, weight = 0.0f;
    for (int e = 0; e < kElements; ++e) {
      const float w = importance ? importance[b * kElements + e] : 1.0f;
      sum += w * std::fabs(x[e]);
      weight += w;
    }
    to[b].d = to_scale(weight > 0.0f ? sum / weight : 0.0f);
    std::memset(to[b].qs, 0, sizeof to[b].qs);
    for (int e = 0; e < kElements; ++e) {
      to[b].qs[e / 8] = static_cast<uint8_t>(to[b].qs[e / 8] | (x[e] >= 0.0f ? 1 << e % 8 : 0));
    }
  }
}

}  // namespace tandem::quants
