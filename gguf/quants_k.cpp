// Dequantizers of the K types: super-blocks of 256 elements in sub-blocks of 16 or 32 with small integer
// scales. The order of the multiplications is part of the contract: every implementation gives the same bits.
#include "gguf/blocks_k.h"
#include "gguf/quants_impl.h"

namespace tandem::quants {

void dequantize_q2_k(const void* src, float* dst, int64_t n) {
  const auto* blocks = static_cast<const BlockQ2_K*>(src);
  for (int64_t b = 0; b < n / QK_K; ++b, dst += QK_K) {
    const BlockQ2_K& block = blocks[b];
    const float d = fp16_to_fp32(block.d), dmin = fp16_to_fp32(block.dmin);
    uint8_t codes[QK_K];
    unpack_codes(block, codes);
    for (int e = 0; e < QK_K; ++e) {
      const uint8_t packed = block.scales[e / 16];
      const float scale = d * static_cast<float>(packed & 15), min = dmin * static_cast<float>(packed >> 4);
      dst[e] = scale * static_cast<float>(codes[e]) - min;
    }
  }
}

void dequantize_q3_k(const void* src, float* dst, int64_t n) {
  const auto* blocks = static_cast<const BlockQ3_K*>(src);
  for (int64_t b = 0; b < n / QK_K; ++b, dst += QK_K) {
    const float d = fp16_to_fp32(blocks[b].d);
    uint8_t codes[QK_K], scales[16];
    unpack_codes(blocks[b], codes);
    unpack_scales_q3_k(blocks[b].scales, scales);
    for (int e = 0; e < QK_K; ++e) {
      const float scale = d * static_cast<float>(scales[e / 16] - 32);
      dst[e] = scale * static_cast<float>(codes[e] - 4);
    }
  }
}

namespace {

// Q4_K and Q5_K differ only in their codes.
template <class Block>
void dequantize_k4(const Block& block, float* dst) {
  const float d = fp16_to_fp32(block.d), dmin = fp16_to_fp32(block.dmin);
  uint8_t codes[QK_K];
  unpack_codes(block, codes);
  for (int s = 0; s < QK_K / 32; ++s) {
    uint8_t packed_scale, packed_min;
    unpack_scale_min_k4(s, block.scales, &packed_scale, &packed_min);
    const float scale = d * static_cast<float>(packed_scale), min = dmin * static_cast<float>(packed_min);
    for (int e = 32 * s; e < 32 * s + 32; ++e) dst[e] = scale * static_cast<float>(codes[e]) - min;
  }
}

}  // namespace

void dequantize_q4_k(const void* src, float* dst, int64_t n) {
  const auto* blocks = static_cast<const BlockQ4_K*>(src);
  for (int64_t b = 0; b < n / QK_K; ++b) dequantize_k4(blocks[b], dst + b * QK_K);
}

void dequantize_q5_k(const void* src, float* dst, int64_t n) {
  const auto* blocks = static_cast<const BlockQ5_K*>(src);
  for (int64_t b = 0; b < n / QK_K; ++b) dequantize_k4(blocks[b], dst + b * QK_K);
}

void dequantize_q6_k(const void* src, float* dst, int64_t n) {
  const auto* blocks = static_cast<const BlockQ6_K*>(src);
  for (int64_t b = 0; b < n / QK_K; ++b, dst += QK_K) {
    const float d = fp16_to_fp32(blocks[b].d);
    uint8_t codes[QK_K];
    unpack_codes(blocks[b], codes);
    for (int e = 0; e < QK_K; ++e) {
      const float scale = d * static_cast<float>(blocks[b].scales[e / 16]);
      dst[e] = scale * static_cast<float>(codes[e] - 32);
    }
  }
}

}  // namespace tandem::quants
