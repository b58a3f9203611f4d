// Activations for integer products: signed bytes with a float scale, made once per input of an op. As on the
// CPU a scale is that of 32 columns for weights in blocks of 32, and of 256 columns for the K types, so that
// both devices give the same results; it is stored for every 32 columns either way.
//
//   q     [n][2][k / 32][16]  bytes of the first halves of all blocks of a token, then of the second halves:
//                             a warp reads contiguous bytes for 32 consecutive blocks
//   meta  [n][k / 32]         scale, and the sums of the bytes of the two halves, for weights with minimums
//                             and offsets
//
// byte = round to even (x * (127 / max|x|)), scale = max|x| / 127; columns with NaN or infinity among them
// get a NaN scale, those with max|x| < 1e-30 are zero.
#pragma once

#include "ggml-cuda/layout.h"

namespace tandem::cuda {

struct alignas(8) BlockMeta {
  float scale;
  int16_t sums[2];
};

enum class Encoding : uint8_t { by_32, by_256 };
inline constexpr int kEncodings = 2;

TANDEM_HD constexpr Encoding encoding_of(DType quantized) {
  return piece_bytes(quantized).super ? Encoding::by_256 : Encoding::by_32;
}

struct Activations {
  const std::byte* q = nullptr;
  const BlockMeta* meta = nullptr;
};

TANDEM_HD constexpr int64_t activation_q_bytes(int64_t n, int64_t k) {
  return align_256(n * k);
}
TANDEM_HD constexpr int64_t activation_bytes(int64_t n, int64_t k) {
  return activation_q_bytes(n, k) +
         align_256(n * (k / kBlockColumns) * static_cast<int64_t>(sizeof(BlockMeta)));
}
// `buffer` has activation_bytes(max_n, k).
inline Activations activations_at(std::byte* buffer, int64_t max_n, int64_t k) {
  return {buffer, reinterpret_cast<const BlockMeta*>(buffer + activation_q_bytes(max_n, k))};
}

// Byte of column 0 or 16 (half 0 or 1) of a block of a token, in q.
TANDEM_HD constexpr int64_t activation_at(int64_t token, int half, int64_t block, int64_t n_blocks) {
  return ((token * 2 + half) * n_blocks + block) * 16;
}

struct BlockScaling {
  float inverse, scale;  // inverse 0: all bytes are 0
};

// From the largest magnitude of a block, as float bits (which order like the magnitudes, NaN above
// everything).
TANDEM_HD inline BlockScaling block_scaling(uint32_t max_bits) {
  const float max = std::bit_cast<float>(max_bits);
  if (max_bits >= 0x7f800000u) return {0.0f, std::bit_cast<float>(0x7fc00000u)};
  if (max < 1e-30f) return {0.0f, 0.0f};
#ifdef __CUDA_ARCH__
  return {__fdiv_rn(127.0f, max), __fdiv_rn(max, 127.0f)};
#else
  return {127.0f / max, max / 127.0f};
#endif
}

TANDEM_HD inline int quantize_value(float x, const BlockScaling& scaling) {
  if (scaling.inverse == 0.0f) return 0;
#ifdef __CUDA_ARCH__
  return __float2int_rn(__fmul_rn(x, scaling.inverse));
#else
  return static_cast<int>(std::nearbyint(x * scaling.inverse));
#endif
}

TANDEM_HD inline BlockMeta load_meta(const BlockMeta* meta) {
#ifdef __CUDA_ARCH__
  return std::bit_cast<BlockMeta>(*reinterpret_cast<const uint2*>(meta));
#else
  return *meta;
#endif
}

}  // namespace tandem::cuda
