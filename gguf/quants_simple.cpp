// Q4_0 Q4_1 Q5_0 Q5_1 Q8_0: 32 elements, one scale, perhaps a minimum. Without importance the quantizers give
// the same bytes as other GGUF programs; with importance they search.
#include <cmath>
#include <cstring>

#include "gguf/blocks.h"
#include "gguf/lanes.h"
#include "gguf/quants_fit.h"

namespace tandem::quants {
namespace {

// Truncates to 0..max; NaN gives 0.
int truncate_to(float v, int max) {
  if (!(v > 0.0f)) return 0;
  return v < static_cast<float>(max) ? static_cast<int>(v) : max;
}

// q [32] levels 0..31 of the 5-bit types, or 0..15 of the 4-bit ones.
void pack_nibbles(const uint8_t* q, uint8_t* qs) {
  for (int j = 0; j < QK / 2; ++j) qs[j] = static_cast<uint8_t>((q[j] & 15) | q[j + QK / 2] << 4);
}

void pack_fifth_bits(const uint8_t* q, uint8_t* qh) {
  uint32_t bits = 0;
  for (int j = 0; j < QK; ++j) bits |= static_cast<uint32_t>(q[j] >> 4 & 1) << j;
  std::memcpy(qh, &bits, sizeof bits);
}

// x = d * (q - half). Returns d; fills q with levels 0 .. 2 * half - 1.
fp16_t quantize_symmetric(const float* x, int half, uint8_t* q) {
  const float d = signed_max(x, QK) / static_cast<float>(-half);
  const float id = inverse(d);
  for (int j = 0; j < QK; ++j) {
    q[j] = static_cast<uint8_t>(truncate_to(x[j] * id + (static_cast<float>(half) + 0.5f), 2 * half - 1));
  }
  return to_scale(d);
}

fp16_t search_symmetric(const float* x, const float* importance, float square, int half, uint8_t* q) {
  float w[QK];
  int8_t signed_q[QK];
  importance_weights(x, importance, QK, 2 * square, w);
  const fp16_t d = to_scale(fit_symmetric(x, w, QK, {-half, half - 1}, 9, 0.1f, signed_q));
  const float id = inverse(fp16_to_fp32(d));
  for (int j = 0; j < QK; ++j) q[j] = static_cast<uint8_t>(nearest_in(x[j] * id, -half, half - 1) + half);
  return d;
}

struct HalfScaleMin {
  fp16_t d, m;
};

// x = d * q + m, q in 0..q_max.
HalfScaleMin quantize_affine(const float* x, int q_max, uint8_t* q) {
  float lo = x[0], hi = x[0];
  for (int j = 1; j < QK; ++j) {
    lo = x[j] < lo ? x[j] : lo;
    hi = x[j] > hi ? x[j] : hi;
  }
  const float d = (hi - lo) / static_cast<float>(q_max);
  const float id = inverse(d);
  for (int j = 0; j < QK; ++j) q[j] = static_cast<uint8_t>(truncate_to((x[j] - lo) * id + 0.5f, q_max));
  return {to_scale(d), to_scale(lo)};
}

HalfScaleMin search_affine(const float* x, const float* importance, float square, int q_max, uint8_t* q) {
  float w[QK];
  importance_weights(x, importance, QK, 2 * square, w);
  const ScaleMin fit = fit_affine(x, w, QK, {q_max, -0.9f, 0.05f, 36, MinSign::any}, q);
  const HalfScaleMin half{to_scale(fit.scale), to_scale(fit.min)};
  const float id = inverse(fp16_to_fp32(half.d)), m = fp16_to_fp32(half.m);
  for (int j = 0; j < QK; ++j) q[j] = static_cast<uint8_t>(nearest_in((x[j] - m) * id, 0, q_max));
  return half;
}

// Quantizes with the search if there is importance, else plainly; returns the scale (or scale and min).
template <class Plain, class Search>
auto choose(int64_t block, const float* importance, Plain plain, Search search) {
  return importance ? search(importance + block * QK) : plain();
}

}  // namespace

void quantize(const float* src, BlockQ4_0* blocks, int64_t n, const float* importance) {
  const float square = importance ? mean_square(src, n) : 0.0f;
  for (int64_t b = 0; b < n / QK; ++b, src += QK) {
    uint8_t q[QK];
    blocks[b].d = choose(
        b, importance, [&] { return quantize_symmetric(src, 8, q); },
        [&](const float* weights) { return search_symmetric(src, weights, square, 8, q); });
    pack_nibbles(q, blocks[b].qs);
  }
}

void quantize(const float* src, BlockQ4_1* blocks, int64_t n, const float* importance) {
  const float square = importance ? mean_square(src, n) : 0.0f;
  for (int64_t b = 0; b < n / QK; ++b, src += QK) {
    uint8_t q[QK];
    const HalfScaleMin half = choose(
        b, importance, [&] { return quantize_affine(src, 15, q); },
        [&](const float* weights) { return search_affine(src, weights, square, 15, q); });
    blocks[b].d = half.d;
    blocks[b].m = half.m;
    pack_nibbles(q, blocks[b].qs);
  }
}

void quantize(const float* src, BlockQ5_0* blocks, int64_t n, const float* importance) {
  const float square = importance ? mean_square(src, n) : 0.0f;
  for (int64_t b = 0; b < n / QK; ++b, src += QK) {
    uint8_t q[QK];
    blocks[b].d = choose(
        b, importance, [&] { return quantize_symmetric(src, 16, q); },
        [&](const float* weights) { return search_symmetric(src, weights, square, 16, q); });
    pack_nibbles(q, blocks[b].qs);
    pack_fifth_bits(q, blocks[b].qh);
  }
}

void quantize(const float* src, BlockQ5_1* blocks, int64_t n, const float* importance) {
  const float square = importance ? mean_square(src, n) : 0.0f;
  for (int64_t b = 0; b < n / QK; ++b, src += QK) {
    uint8_t q[QK];
    const HalfScaleMin half = choose(
        b, importance, [&] { return quantize_affine(src, 31, q); },
        [&](const float* weights) { return search_affine(src, weights, square, 31, q); });
    blocks[b].d = half.d;
    blocks[b].m = half.m;
    pack_nibbles(q, blocks[b].qs);
    pack_fifth_bits(q, blocks[b].qh);
  }
}

// 8 bits gain nothing from a search, so importance is not used. Ties round away from zero.
TANDEM_LANES_FN void quantize(const float* src, BlockQ8_0* blocks, int64_t n, const float*) {
  const Lanes zero{}, most = splat(127.0f);
  for (int64_t b = 0; b < n / QK; ++b, src += QK) {
    const Lanes x[2] = {load(src), load(src + kLanes)};
    Lanes largest = zero;
    for (const Lanes& half : x) largest = magnitude(half) > largest ? magnitude(half) : largest;
    float max = 0.0f;
    for (int l = 0; l < kLanes; ++l) max = largest[l] > max ? largest[l] : max;
    const float d = max / 127.0f, id = inverse(d);
    for (int h = 0; h < 2; ++h) {
      const Lanes v = x[h] * id;
      Lanes size = magnitude(v);
      size = size > zero ? size : zero;  // NaN gives 0
      size = size < most ? size : most;
      const Lanes whole = __builtin_convertvector(__builtin_convertvector(size, IntLanes), Lanes);
      size = size - whole >= 0.5f ? whole + 1.0f : whole;
      const Lanes rounded = v < zero ? -size : size;
      const ByteLanes bytes = __builtin_convertvector(__builtin_convertvector(rounded, IntLanes), ByteLanes);
      std::memcpy(blocks[b].qs + h * kLanes, &bytes, sizeof bytes);
    }
    blocks[b].d = to_scale(d);
  }
}

}  // namespace tandem::quants
