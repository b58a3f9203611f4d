// IQ4_NL, IQ4_XS, MXFP4 and NVFP4: four bits that index a table of levels.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "gguf/blocks.h"
#include "gguf/quants_fit.h"
#include "gguf/quants_impl.h"

namespace tandem::quants {
namespace {

constexpr Levels kIq4{0, 15, kvalues_iq4nl};

void pack(const float* x, float scale, uint8_t* qs) {
  const float inverse_scale = inverse(scale);
  for (int j = 0; j < QK / 2; ++j) {
    const int low = kIq4.nearest(x[j] * inverse_scale), high = kIq4.nearest(x[j + QK / 2] * inverse_scale);
    qs[j] = static_cast<uint8_t>(low | high << 4);
  }
}

void weights_of(const float* x, const float* importance, int n, float square, float* w) {
  if (importance) return importance_weights(x, importance, n, 2 * square, w);
  for (int j = 0; j < n; ++j) w[j] = 0.5f * square + x[j] * x[j];
}

}  // namespace

void quantize(const float* src, BlockIQ4_NL* blocks, int64_t n, const float* importance) {
  for (int64_t b = 0; b < n / QK; ++b, src += QK) {
    float w[QK];
    int8_t q[QK];
    weights_of(src, importance ? importance + b * QK : nullptr, QK, mean_square(src, QK), w);
    blocks[b].d = to_scale(fit_symmetric(src, w, QK, kIq4, 7, 1.0f, q));
    pack(src, fp16_to_fp32(blocks[b].d), blocks[b].qs);
  }
}

// The largest element becomes level 0, the others the nearest; the scale is the least-squares one for these levels, with the
// squares as weights. ops/kv_rows.h of the CUDA backend does the same operations in the same order.
void quantize_at_once(const float* src, BlockIQ4_NL* blocks, int64_t n) {
  for (int64_t b = 0; b < n / QK; ++b, src += QK) {
    const float inverse_max = inverse(signed_max(src, QK));
    float xl = 0.0f, ll = 0.0f;
    for (int j = 0; j < QK; ++j) {
      const float share = src[j] * inverse_max, w = share * share;
      const float level = kIq4.value(kIq4.nearest(share * kIq4.value(0)));
      xl += w * src[j] * level;
      ll += w * level * level;
    }
    blocks[b].d = to_scale(ll > 0.0f ? xl / ll : 0.0f);
    pack(src, fp16_to_fp32(blocks[b].d), blocks[b].qs);
  }
}

void quantize(const float* src, BlockIQ4_XS* blocks, int64_t n, const float* importance) {
  constexpr int kSubs = QK_K / 32;
  for (int64_t b = 0; b < n / QK_K; ++b, src += QK_K) {
    BlockIQ4_XS& block = blocks[b];
    float w[QK_K], scales[kSubs], scale_weights[kSubs];
    weights_of(src, importance ? importance + b * QK_K : nullptr, QK_K, mean_square(src, QK_K), w);
    for (int s = 0; s < kSubs; ++s) {
      int8_t q[32];
      scales[s] = fit_symmetric(src + 32 * s, w + 32 * s, 32, kIq4, 7, 1.0f, q);
      scale_weights[s] = 0.0f;
      for (int j = 0; j < 32; ++j) scale_weights[s] += w[32 * s + j] * kIq4.value(q[j]) * kIq4.value(q[j]);
    }
    int packed[kSubs];
    block.d = to_scale(fit_scales(scales, scale_weights, kSubs, -32, 31, packed));
    block.scales_h = 0;
    std::memset(block.scales_l, 0, sizeof block.scales_l);
    const float d = fp16_to_fp32(block.d);
    for (int s = 0; s < kSubs; ++s) {
      packed[s] = refine_scale(src + 32 * s, w + 32 * s, 32, kIq4, d, packed[s], -32, 31);
      const int code = packed[s] + 32;
      block.scales_l[s / 2] = static_cast<uint8_t>(block.scales_l[s / 2] | (code & 15) << 4 * (s % 2));
      block.scales_h = static_cast<uint16_t>(block.scales_h | code >> 4 << 2 * s);
      pack(src + 32 * s, d * static_cast<float>(packed[s]), block.qs + 16 * s);
    }
  }
}

namespace {

// Returns the nearest code; the first one on a tie.
uint8_t nearest_mxfp4(float x, float scale) {
  uint8_t best = 0;
  float least = std::fabs(x);
  for (uint8_t code = 1; code < 16; ++code) {
    const float error = std::fabs(scale * kvalues_mxfp4[code] - x);
    if (error < least) {
      least = error;
      best = code;
    }
  }
  return best;
}

}  // namespace

// The exponent follows from the largest element, as in the OCP microscaling specification; importance is not
// used.
void quantize(const float* src, BlockMXFP4* blocks, int64_t n, const float*) {
  for (int64_t b = 0; b < n / QK; ++b, src += QK) {
    const float max = std::fabs(signed_max(src, QK));
    const int exponent = max > 0.0f && std::isfinite(max) ? std::ilogb(max) - 2 + 127 : 0;
    blocks[b].e = static_cast<uint8_t>(exponent < 0 ? 0 : exponent);
    const float scale = e8m0_to_fp32_half(blocks[b].e);
    for (int j = 0; j < QK / 2; ++j) {
      blocks[b].qs[j] =
          static_cast<uint8_t>(nearest_mxfp4(src[j], scale) | nearest_mxfp4(src[j + QK / 2], scale) << 4);
    }
  }
}

namespace {

// Fills qs [8] with the nearest codes of 16 elements and returns their weighted squared error.
float pack_nvfp4(const float* x, const float* w, float scale, uint8_t* qs) {
  float loss = 0.0f;
  for (int j = 0; j < 16; ++j) {
    const uint8_t code = nearest_mxfp4(x[j], scale);
    const float error = x[j] - scale * kvalues_mxfp4[code];
    loss += w[j] * error * error;
    qs[j % 8] = static_cast<uint8_t>(j < 8 ? code : qs[j % 8] | code << 4);
  }
  return loss;
}

}  // namespace

// Tries the scale that fits the largest element and those next to it.
void quantize(const float* src, BlockNVFP4* blocks, int64_t n, const float* importance) {
  constexpr int kElements = BlockNVFP4::kElements, kMaxScale = 126, kNeighbours = 2;
  for (int64_t b = 0; b < n / kElements; ++b) {
    for (int s = 0; s < kElements / 16; ++s) {
      const int64_t at = b * kElements + 16 * s;
      const float* x = src + at;
      float w[16];
      weights_of(x, importance ? importance + at : nullptr, 16, mean_square(x, 16), w);
      const float wanted = std::fabs(signed_max(x, 16)) / 12.0f;
      int nearest = 0;
      while (nearest < kMaxScale && e4m3_to_fp32_half(static_cast<uint8_t>(nearest)) < wanted) ++nearest;
      float least = INFINITY;
      blocks[b].d[s] = 0;
      std::memset(blocks[b].qs + 8 * s, 0, 8);
      for (int code = std::max(0, nearest - kNeighbours); code <= std::min(kMaxScale, nearest + kNeighbours);
           ++code) {
        uint8_t qs[8] = {};
        const float loss = pack_nvfp4(x, w, e4m3_to_fp32_half(static_cast<uint8_t>(code)), qs);
        if (!(loss < least)) continue;
        least = loss;
        blocks[b].d[s] = static_cast<uint8_t>(code);
        std::memcpy(blocks[b].qs + 8 * s, qs, sizeof qs);
      }
    }
  }
}

}  // namespace tandem::quants
