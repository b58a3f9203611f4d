// Converts rows of floats to the cache's dtypes, for the kernels of every vector ISA. Included after the
// ISA's vec.h. The bytes are exactly those of the reference in gguf/quants.h, which stores the dtypes that have no code here.
#pragma once

#include <cstring>

#include "cpu/attention_kernels.h"
#include "gguf/blocks.h"
#include "gguf/dtype.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

void store_f16_row(const float* from, std::byte* to, int64_t n) {
  auto* h = reinterpret_cast<fp16_t*>(to);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_f16(h + i, load(from + i));
  for (; i < n; ++i) h[i] = fp32_to_fp16(from[i]);
}

void store_bf16_row(const float* from, std::byte* to, int64_t n) {
  auto* h = reinterpret_cast<bf16_t*>(to);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_bf16(h + i, load(from + i));
  for (; i < n; ++i) h[i] = fp32_to_bf16(from[i]);
}

// Elements of a block in vectors.
inline constexpr int64_t kBlockVecs = QK / kLanes;
struct Block {
  Vec v[kBlockVecs];
};

TANDEM_INLINE Block load_block(const float* x) {
  Block block;
  for (int64_t i = 0; i < kBlockVecs; ++i) block.v[i] = load(x + i * kLanes);
  return block;
}

// NaN is ignored.
TANDEM_INLINE float greatest_magnitude(const Block& block) {
  Vec m = set1(0.0f);
  for (const Vec& v : block.v) m = vmax(vabs(v), m);
  return max_lanes(m);
}

// Returns the first element of that magnitude, with its sign.
TANDEM_INLINE float first_of_magnitude(const Block& block, const float* x, float magnitude) {
  for (int64_t i = 0; i < kBlockVecs; ++i) {
    const uint32_t found = bits_of(equal(vabs(block.v[i]), set1(magnitude)));
    if (found != 0) return x[i * kLanes + __builtin_ctz(found)];
  }
  return 0.0f;
}

// Scales like the reference's: finite, 0 where they would not be.
TANDEM_INLINE float finite_inverse(float v) {
  const float r = 1.0f / v;
  return __builtin_isfinite(r) ? r : 0.0f;
}
TANDEM_INLINE fp16_t finite_half(float v) {
  if (v != v) return 0;
  return fp32_to_fp16(v > 65504.0f ? 65504.0f : v < -65504.0f ? -65504.0f : v);
}

void store_q8_0_row(const float* from, std::byte* to, int64_t n) {
  auto* out = reinterpret_cast<BlockQ8_0*>(to);
  for (int64_t b = 0; b < n / QK; ++b, from += QK) {
    const Block x = load_block(from);
    const float d = greatest_magnitude(x) / 127.0f;
    const Vec id = set1(finite_inverse(d)), limit = set1(127.0f), one = set1(1.0f);
    for (int64_t i = 0; i < kBlockVecs; ++i) {  // nearest, ties away from zero
      const Vec v = x.v[i] * id, a = vabs(v);
      const Vec whole = truncate(vmin(a, limit));
      const Vec up = keep(not_less(a - whole, set1(0.5f)), one);
      const Vec q = keep(equal(v, v), vmin(whole + up, limit));
      store_i8(out[b].qs + i * kLanes, copy_sign(q, v));
    }
    out[b].d = finite_half(d);
  }
}

void store_q4_0_row(const float* from, std::byte* to, int64_t n) {
  auto* out = reinterpret_cast<BlockQ4_0*>(to);
  for (int64_t b = 0; b < n / QK; ++b, from += QK) {
    const Block x = load_block(from);
    const float d = first_of_magnitude(x, from, greatest_magnitude(x)) / -8.0f;
    const Vec id = set1(finite_inverse(d));
    alignas(32) int8_t q[QK];
    for (int64_t i = 0; i < kBlockVecs; ++i) {  // NaN becomes 0: max and min give their second operand
      const Vec v = vmax(x.v[i] * id + set1(8.5f), set1(0.0f));
      store_i8(q + i * kLanes, truncate(vmin(v, set1(15.0f))));
    }
    const __m128i low = _mm_load_si128(reinterpret_cast<const __m128i*>(q));
    const __m128i high = _mm_load_si128(reinterpret_cast<const __m128i*>(q + 16));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out[b].qs), _mm_or_si128(low, _mm_slli_epi16(high, 4)));
    out[b].d = finite_half(d);
  }
}

[[maybe_unused]] void store_row(DType dtype, const float* from, std::byte* to, int64_t n) {
  switch (dtype) {
    case DType::F32: memcpy(to, from, static_cast<size_t>(n) * sizeof(float)); return;
    case DType::F16: return store_f16_row(from, to, n);
    case DType::BF16: return store_bf16_row(from, to, n);
    case DType::Q8_0: return store_q8_0_row(from, to, n);
    case DType::Q4_0: return store_q4_0_row(from, to, n);
    default: return scalar::attention_kernels().store_row(dtype, from, to, n);
  }
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
