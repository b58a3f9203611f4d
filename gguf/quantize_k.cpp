// Quantizers of the K types: each type's parameters for the search of quants_blocks.h, and its packing.
#include <algorithm>

#include "gguf/blocks_k.h"
#include "gguf/quants_blocks.h"

namespace tandem::quants {
namespace {

constexpr AffineType kQ2_K{16, 3, 15, -0.5f, 0.1f, 15, 0.0f};
constexpr AffineType kQ4_K{32, 15, 63, -1.0f, 0.1f, 21, 1.0f};
constexpr AffineType kQ5_K{32, 31, 63, -0.5f, 0.1f, 15, 1.0f};
constexpr SymmetricType kQ3_K{-4, 3, -32, 31, 1, 0.5f};
constexpr SymmetricType kQ6_K{-32, 31, -128, 127, 9, 0.1f};

AffineBlock quantize_block(AffineType type, const float* x, const float* importance) {
  if (importance) {  // a finer search
    type.first = -0.9f;
    type.spacing = 0.05f;
    type.n_tries = 37;
  }
  AffineBlock block;
  fit_block(type, x, importance, block);
  return block;
}

SymmetricBlock quantize_block(SymmetricType type, const float* x, const float* importance) {
  if (importance) {
    type.n_tries = 9;
    type.spacing = 0.1f;
  }
  SymmetricBlock block;
  fit_block(type, x, importance, block);
  return block;
}

const float* at_block(const float* importance, int64_t b) {
  return importance ? importance + b * QK_K : nullptr;
}

}  // namespace

void quantize(const float* src, BlockQ2_K* blocks, int64_t n, const float* importance) {
  for (int64_t b = 0; b < n / QK_K; ++b) {
    const AffineBlock fit = quantize_block(kQ2_K, src + b * QK_K, at_block(importance, b));
    blocks[b].d = fit.d;
    blocks[b].dmin = fit.dmin;
    for (int s = 0; s < 16; ++s) blocks[b].scales[s] = static_cast<uint8_t>(fit.scales[s] | fit.mins[s] << 4);
    pack_codes(fit.codes, blocks[b]);
  }
}

void quantize(const float* src, BlockQ3_K* blocks, int64_t n, const float* importance) {
  for (int64_t b = 0; b < n / QK_K; ++b) {
    const SymmetricBlock fit = quantize_block(kQ3_K, src + b * QK_K, at_block(importance, b));
    uint8_t scales[16];
    for (int s = 0; s < 16; ++s) scales[s] = static_cast<uint8_t>(fit.scales[s] + 32);
    blocks[b].d = fit.d;
    pack_scales_q3_k(scales, blocks[b].scales);
    pack_codes(fit.codes, blocks[b]);
  }
}

namespace {

template <class Block>
void quantize_k4(const AffineType& type, const float* src, Block* blocks, int64_t n,
                 const float* importance) {
  for (int64_t b = 0; b < n / QK_K; ++b) {
    const AffineBlock fit = quantize_block(type, src + b * QK_K, at_block(importance, b));
    blocks[b].d = fit.d;
    blocks[b].dmin = fit.dmin;
    pack_scale_min_k4(fit.scales, fit.mins, blocks[b].scales);
    pack_codes(fit.codes, blocks[b]);
  }
}

}  // namespace

void quantize(const float* src, BlockQ4_K* blocks, int64_t n, const float* importance) {
  quantize_k4(kQ4_K, src, blocks, n, importance);
}

void quantize(const float* src, BlockQ5_K* blocks, int64_t n, const float* importance) {
  quantize_k4(kQ5_K, src, blocks, n, importance);
}

void quantize(const float* src, BlockQ6_K* blocks, int64_t n, const float* importance) {
  for (int64_t b = 0; b < n / QK_K; ++b) {
    const SymmetricBlock fit = quantize_block(kQ6_K, src + b * QK_K, at_block(importance, b));
    blocks[b].d = fit.d;
    std::copy(fit.scales, fit.scales + 16, blocks[b].scales);
    pack_codes(fit.codes, blocks[b]);
  }
}

}  // namespace tandem::quants
