// Activations to 8 bits. Cost: reads 4 bytes and writes about 1.2 bytes per element; a few percent of a product's
// time, once for all weights that read the input.
#include <bit>
#include <cstring>
#include <limits>

#include "cpu/avx512/linear_layout.h"
#include "cpu/avx512/linear_simd.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// Largest magnitude, as bits: they order like the magnitudes, with infinity and NaN above everything.
TANDEM_INLINE __m512i max_magnitude(__m512i max, const float* x) {
  const __m512i bits = _mm512_castps_si512(_mm512_loadu_ps(x));
  return _mm512_max_epi32(max, _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)));
}

struct Scale { float scale, inverse; };

// See LinearKernels::encode. With an inverse of zero NaNs may convert to anything: the NaN scale outlives it.
TANDEM_INLINE Scale scale_of(__m512i max_bits) {
  const float max = std::bit_cast<float>(_mm512_reduce_max_epi32(max_bits));
  if (!(max <= std::numeric_limits<float>::max())) return {std::numeric_limits<float>::quiet_NaN(), 0.0f};
  if (max < 1e-30f) return {0.0f, 0.0f};
  return {max / 127.0f, 127.0f / max};
}

// 16 floats to 16 bytes; returns them as integers too.
TANDEM_INLINE __m512i quantize(const float* x, float inverse, int8_t* q) {
  const __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(inverse)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtsepi32_epi8(v));
  return v;
}

// Puts count words of one token at every T-th place.
TANDEM_INLINE void spread(const void* from, int64_t count, int64_t T, uint32_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t word;
    std::memcpy(&word, static_cast<const char*>(from) + 4 * i, 4);
    to[i * T] = word;
  }
}

}  // namespace

void encode_tile(const TileLayout& layout, const float* x, int64_t ldx, int64_t T, std::byte* tile) {
  uint32_t* const q_to = reinterpret_cast<uint32_t*>(tile);
  uint32_t* const scale_to = q_to + layout.q_words() * T;
  uint32_t* const sum_to = scale_to + layout.scale_words() * T;
  uint32_t* const sum32_to = sum_to + layout.sum_words() * T;
  const int64_t unit = layout.unit;
  for (int64_t b = 0; b < layout.k / unit; ++b) {
    for (int64_t t = 0; t < T; ++t) {
      const float* from = x + t * ldx + b * unit;
      __m512i max_bits = _mm512_setzero_si512();
      for (int64_t i = 0; i < unit; i += 16) max_bits = max_magnitude(max_bits, from + i);
      const Scale s = scale_of(max_bits);
      std::memcpy(scale_to + b * T + t, &s.scale, 4);
      alignas(64) int8_t q[256];
      if (unit == 32) {
        const __m512i low = quantize(from, s.inverse, q), high = quantize(from + 16, s.inverse, q + 16);
        sum_to[b * T + t] = static_cast<uint32_t>(_mm512_reduce_add_epi32(_mm512_add_epi32(low, high)));
      } else {
        alignas(64) int16_t sum16[16], sum32[8];
        for (int64_t i = 0; i < 16; ++i) {
          sum16[i] = static_cast<int16_t>(_mm512_reduce_add_epi32(quantize(from + 16 * i, s.inverse, q + 16 * i)));
        }
        for (int64_t i = 0; i < 8; ++i) sum32[i] = static_cast<int16_t>(sum16[2 * i] + sum16[2 * i + 1]);
        spread(sum16, 8, T, sum_to + b * 8 * T + t);
        spread(sum32, 4, T, sum32_to + b * 4 * T + t);
      }
      spread(q, unit / 4, T, q_to + b * unit / 4 * T + t);
    }
  }
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
