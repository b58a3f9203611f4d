// Quantizers of the K types. Each sub-block is fitted on its own; then the sub-block scales (and minima) are
// fitted by small integers times one half each; then the codes are rounded again with what those halves
// really give.
#include <algorithm>
#include <cmath>

#include "gguf/blocks_k.h"
#include "gguf/quants_fit.h"
#include "gguf/quants_impl.h"
#include "gguf/quants_lanes.h"

namespace tandem::quants {
namespace {

constexpr int kMaxSubs = 16;

// ---- x = d * scale * q - dmin * min: Q2_K, Q4_K, Q5_K

struct AffineType {
  int width;      // elements in a sub-block
  int scale_max;  // of the integer scales and minima
  AffineSearch search;
  float flatness;  // weight of an element without importance: flatness * rms + |x|

  int n_subs() const { return QK_K / width; }
};

constexpr AffineType kQ2_K{16, 15, {3, -0.5f, 0.1f, 15, MinSign::not_positive}, 0.0f};
constexpr AffineType kQ4_K{32, 63, {15, -1.0f, 0.1f, 20, MinSign::not_positive}, 1.0f};
constexpr AffineType kQ5_K{32, 63, {31, -0.5f, 0.1f, 15, MinSign::not_positive}, 1.0f};

struct AffineBlock {
  fp16_t d, dmin;
  uint8_t scales[kMaxSubs], mins[kMaxSubs];
  uint8_t codes[QK_K];
};

void affine_weights(const AffineType& type, const float* x, const float* importance, float* w) {
  if (importance) return importance_weights(x, importance, QK_K, 2 * mean_square(x, QK_K), w);
  for (int s = 0; s < type.n_subs(); ++s, x += type.width, w += type.width) {
    const float rms = type.flatness > 0.0f ? type.flatness * std::sqrt(mean_square(x, type.width)) : 0.0f;
    for (int j = 0; j < type.width; ++j) w[j] = rms + std::fabs(x[j]);
  }
}

// Rounds every code with the scales as they are stored.
void round_codes(const AffineType& type, const float* x, AffineBlock& block) {
  const float d = fp16_to_fp32(block.d), dmin = fp16_to_fp32(block.dmin);
  for (int s = 0; s < type.n_subs(); ++s) {
    const float inverse_scale = inverse(d * static_cast<float>(block.scales[s]));
    const float min = dmin * static_cast<float>(block.mins[s]);
    for (int e = s * type.width; e < (s + 1) * type.width; ++e) {
      block.codes[e] = static_cast<uint8_t>(nearest_in((x[e] + min) * inverse_scale, 0, type.search.q_max));
    }
  }
}

// Scale and minimum were rounded each for itself; their errors partly cancel, so look at the neighbours of
// the pair.
void refine_integers(const AffineType& type, const float* x, const float* w, AffineBlock& block) {
  const float d = fp16_to_fp32(block.d), dmin = fp16_to_fp32(block.dmin);
  for (int s = 0; s < type.n_subs(); ++s) {
    const int at = s * type.width, scale = block.scales[s], min = block.mins[s];
    LossLanes candidates{};
    float losses[kLanes], best = INFINITY;
    for (int k = 0; k < 9; ++k) {
      candidates.scale[k] = d * static_cast<float>(scale + k / 3 - 1);
      candidates.inverse_scale[k] = inverse(candidates.scale[k]);
      candidates.min[k] = -dmin * static_cast<float>(min + k % 3 - 1);
    }
    loss_lanes(x + at, w + at, type.width, 0.0f, static_cast<float>(type.search.q_max), candidates, losses);
    for (int k = 0; k < 9; ++k) {
      const int i = scale + k / 3 - 1, m = min + k % 3 - 1;
      if (i < 0 || i > type.scale_max || m < 0 || m > type.scale_max || !(losses[k] < best)) continue;
      best = losses[k];
      block.scales[s] = static_cast<uint8_t>(i);
      block.mins[s] = static_cast<uint8_t>(m);
    }
  }
}

// With codes and integers fixed, the best d and dmin are a 2x2 least-squares problem.
void refit_halves(const AffineType& type, const float* x, const float* w, AffineBlock& block) {
  float ss = 0, mm = 0, sm = 0, sx = 0, mx = 0;
  for (int s = 0; s < type.n_subs(); ++s) {
    const auto scale = static_cast<float>(block.scales[s]), min = static_cast<float>(block.mins[s]);
    float wll = 0, wl = 0, wt = 0, wxl = 0, wx = 0;
    for (int e = s * type.width; e < (s + 1) * type.width; ++e) {
      const auto q = static_cast<float>(block.codes[e]);
      wll += w[e] * q * q;
      wl += w[e] * q;
      wt += w[e];
      wxl += w[e] * x[e] * q;
      wx += w[e] * x[e];
    }
    ss += scale * scale * wll;
    sm += scale * min * wl;
    mm += min * min * wt;
    sx += scale * wxl;
    mx += min * wx;
  }
  const float det = ss * mm - sm * sm;
  if (det > 1e-6f * ss * mm) {
    const float d = (mm * sx - sm * mx) / det, dmin = (sm * sx - ss * mx) / det;
    if (!(d >= 0.0f && dmin >= 0.0f)) return;
    block.d = to_scale(d);
    block.dmin = to_scale(dmin);
  } else if (mm == 0.0f && ss > 0.0f && sx > 0.0f) {
    block.d = to_scale(sx / ss);
  }
}

void fit_block(const AffineType& type, const AffineSearch& search, const float* x, const float* w,
               AffineBlock& block) {
  const int n_subs = type.n_subs();
  float scales[kMaxSubs] = {}, mins[kMaxSubs] = {}, scale_weights[kMaxSubs] = {}, min_weights[kMaxSubs] = {};
  for (int s = 0; s < n_subs; ++s) {
    const int at = s * type.width;
    const ScaleMin fit = fit_affine(x + at, w + at, type.width, search, block.codes + at);
    scales[s] = fit.scale;
    mins[s] = -fit.min;
    scale_weights[s] = min_weights[s] = 0.0f;
    for (int e = at; e < at + type.width; ++e) {
      const auto q = static_cast<float>(block.codes[e]);
      scale_weights[s] += w[e] * q * q;
      min_weights[s] += w[e];
    }
  }
  int quantized[kMaxSubs];
  block.d = to_scale(fit_scales(scales, scale_weights, n_subs, 0, type.scale_max, quantized));
  std::copy(quantized, quantized + n_subs, block.scales);
  block.dmin = to_scale(fit_scales(mins, min_weights, n_subs, 0, type.scale_max, quantized));
  std::copy(quantized, quantized + n_subs, block.mins);
  refine_integers(type, x, w, block);
  round_codes(type, x, block);
  refit_halves(type, x, w, block);
  round_codes(type, x, block);
}

AffineBlock quantize_block(const AffineType& type, const float* x, const float* importance) {
  float w[QK_K];
  AffineBlock block;
  AffineSearch search = type.search;
  if (importance)
    search = {search.q_max, -0.9f, 0.05f, 36, search.sign};  // worth the time where it is asked for
  affine_weights(type, x, importance, w);
  fit_block(type, search, x, w, block);
  return block;
}

// ---- x = d * scale * q with q and scale of either sign: Q3_K, Q6_K

// Weight of an element without importance: flatness * mean square + x^2. The squares alone would spend
// everything on the largest elements.
constexpr float kFlatness = 0.5f;

struct SymmetricBlock {
  fp16_t d;
  int scales[kMaxSubs];
  uint8_t codes[QK_K];  // q - levels.lo
};

void round_codes(const Levels& levels, const float* x, SymmetricBlock& block) {
  const float d = fp16_to_fp32(block.d);
  for (int at = 0; at < QK_K; at += 16) {
    const float inverse_scale = inverse(d * static_cast<float>(block.scales[at / 16]));
    for (int e = at; e < at + 16; ++e) {
      block.codes[e] =
          static_cast<uint8_t>(nearest_in(x[e] * inverse_scale, levels.lo, levels.hi) - levels.lo);
    }
  }
}

void refit_half(const Levels& levels, const float* x, const float* w, SymmetricBlock& block) {
  float xl = 0.0f, ll = 0.0f;
  for (int e = 0; e < QK_K; ++e) {
    const auto level = static_cast<float>(block.scales[e / 16] * (block.codes[e] + levels.lo));
    xl += w[e] * x[e] * level;
    ll += w[e] * level * level;
  }
  if (ll > 0.0f) block.d = to_scale(xl / ll);
}

void symmetric_weights(const float* x, const float* importance, float* w) {
  const float square = mean_square(x, QK_K);
  if (importance) return importance_weights(x, importance, QK_K, 2 * square, w);
  for (int e = 0; e < QK_K; ++e) w[e] = kFlatness * square + x[e] * x[e];
}

SymmetricBlock quantize_block(const Levels& levels, int scale_min, int scale_max, const float* x,
                              const float* importance) {
  constexpr int kWidth = 16, kSubs = QK_K / kWidth;
  float w[QK_K], scales[kSubs], scale_weights[kSubs];
  symmetric_weights(x, importance, w);
  for (int s = 0; s < kSubs; ++s) {
    const int at = s * kWidth;
    int8_t q[kWidth];
    scales[s] = fit_symmetric(x + at, w + at, kWidth, levels, 9, 0.1f, q);
    scale_weights[s] = 0.0f;
    for (int j = 0; j < kWidth; ++j) scale_weights[s] += w[at + j] * static_cast<float>(q[j] * q[j]);
  }
  SymmetricBlock block;
  block.d = to_scale(fit_scales(scales, scale_weights, kSubs, scale_min, scale_max, block.scales));
  const float d = fp16_to_fp32(block.d);
  for (int s = 0; s < kSubs; ++s) {
    const int at = s * kWidth;
    block.scales[s] = refine_scale(x + at, w + at, kWidth, levels, d, block.scales[s], scale_min, scale_max);
  }
  round_codes(levels, x, block);
  refit_half(levels, x, w, block);
  round_codes(levels, x, block);
  return block;
}

const float* at_block(const float* importance, int64_t b) {
  return importance ? importance + b * QK_K : nullptr;
}

}  // namespace

void quantize_q2_k(const float* src, void* dst, int64_t n, const float* importance) {
  auto* blocks = static_cast<BlockQ2_K*>(dst);
  for (int64_t b = 0; b < n / QK_K; ++b) {
    const AffineBlock fit = quantize_block(kQ2_K, src + b * QK_K, at_block(importance, b));
    blocks[b].d = fit.d;
    blocks[b].dmin = fit.dmin;
    for (int s = 0; s < 16; ++s) blocks[b].scales[s] = static_cast<uint8_t>(fit.scales[s] | fit.mins[s] << 4);
    pack_codes(fit.codes, blocks[b]);
  }
}

void quantize_q3_k(const float* src, void* dst, int64_t n, const float* importance) {
  auto* blocks = static_cast<BlockQ3_K*>(dst);
  for (int64_t b = 0; b < n / QK_K; ++b) {
    const SymmetricBlock fit = quantize_block({-4, 3}, -32, 31, src + b * QK_K, at_block(importance, b));
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

void quantize_q4_k(const float* src, void* dst, int64_t n, const float* importance) {
  quantize_k4(kQ4_K, src, static_cast<BlockQ4_K*>(dst), n, importance);
}

void quantize_q5_k(const float* src, void* dst, int64_t n, const float* importance) {
  quantize_k4(kQ5_K, src, static_cast<BlockQ5_K*>(dst), n, importance);
}

void quantize_q6_k(const float* src, void* dst, int64_t n, const float* importance) {
  auto* blocks = static_cast<BlockQ6_K*>(dst);
  for (int64_t b = 0; b < n / QK_K; ++b) {
    const SymmetricBlock fit = quantize_block({-32, 31}, -128, 127, src + b * QK_K, at_block(importance, b));
    blocks[b].d = fit.d;
    std::copy(fit.scales, fit.scales + 16, blocks[b].scales);
    pack_codes(fit.codes, blocks[b]);
  }
}

}  // namespace tandem::quants
