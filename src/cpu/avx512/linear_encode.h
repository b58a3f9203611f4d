// Activations to 8 bits, 256 columns of a token at a time; then the tokens of a tile are interleaved. Cost:
// reads 4 bytes and writes about 1.2 an element, half a cycle each; once for all weights that read the input.
#pragma once

#include <cstring>
#include <limits>

#include "cpu/avx512/linear_layout.h"
#include "cpu/avx512/linear_strip.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

constexpr int64_t kSpan = 256;

// Some columns of one token. Columns past the end are zero.
struct Span {
  alignas(64) float scale[8];  // per unit
  alignas(64) float inverse[8];
  alignas(32) int16_t sum16[16];
  alignas(32) int32_t sum32[8];
};

// Largest magnitude of n floats, as bits: they order like magnitudes, with infinity and NaN above everything.
template <int n>
TANDEM_INLINE int32_t max_magnitude(const float* x) {
  __m512i max = _mm512_setzero_si512();
  unroll<n / 16>([&](auto i) __attribute__((always_inline)) {
    const __m512i bits = _mm512_castps_si512(_mm512_loadu_ps(x + 16 * i.value));
    max = _mm512_max_epi32(max, _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)));
  });
  return _mm512_reduce_max_epi32(max);
}

// See LinearKernels::encode. Where the inverse is zero, NaNs may convert to anything: the NaN scale wins.
TANDEM_INLINE void scales_of(const int32_t* max_bits, Span& span) {
  const __m256 max = _mm256_castsi256_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(max_bits)));
  const __mmask8 finite =
      _mm256_cmp_ps_mask(max, _mm256_set1_ps(std::numeric_limits<float>::max()), _CMP_LE_OQ);
  const __mmask8 usable = _mm256_mask_cmp_ps_mask(finite, max, _mm256_set1_ps(1e-30f), _CMP_GE_OQ);
  const __m256 steps = _mm256_set1_ps(127.0f);
  const __m256 scale = _mm256_maskz_div_ps(usable, max, steps);
  const __m256 nan = _mm256_set1_ps(std::numeric_limits<float>::quiet_NaN());
  _mm256_store_ps(span.scale, _mm256_mask_mov_ps(nan, finite, scale));
  _mm256_store_ps(span.inverse, _mm256_maskz_div_ps(usable, steps, max));
}

// Sums of 16 and of 32 bytes.
TANDEM_INLINE void sums_of(const int8_t* q, Span& span) {
  __m512i fours[4];
  unroll<4>([&](auto i) __attribute__((always_inline)) {
    fours[i.value] =
        dot_u8s8<false>(_mm512_setzero_si512(), _mm512_set1_epi8(1), _mm512_load_si512(q + 64 * i.value));
  });
  const auto fold32 = [](__m512i a, __m512i b) __attribute__((always_inline)) {
    return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  };
  const __m512i low = fold32(fours[0], fours[1]), high = fold32(fours[2], fours[3]);
  const __m512i sums = _mm512_add_epi32(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m256i sum16 = _mm512_cvtepi32_epi16(_mm512_permutexvar_epi32(order, sums));
  _mm256_store_si256(reinterpret_cast<__m256i*>(span.sum16), sum16);
  _mm256_store_si256(reinterpret_cast<__m256i*>(span.sum32), _mm256_madd_epi16(sum16, _mm256_set1_epi16(1)));
}

template <int unit>
TANDEM_INLINE void encode_span(const float* x, int64_t columns, int8_t* q, Span& span) {
  alignas(32) int32_t max_bits[8] = {};
  for (int64_t i = 0; i < columns / unit; ++i) max_bits[i] = max_magnitude<unit>(x + i * unit);
  scales_of(max_bits, span);
  for (int64_t i = 0; i < columns; i += 32) {
    const __m512 inverse = _mm512_set1_ps(span.inverse[i / unit]);
    unroll<2>([&](auto j) __attribute__((always_inline)) {
      const __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i + 16 * j.value), inverse));
      _mm_store_si128(reinterpret_cast<__m128i*>(q + i + 16 * j.value), _mm512_cvtsepi32_epi8(v));
    });
  }
  for (int64_t i = columns; i < kSpan; i += 16) {
    _mm_store_si128(reinterpret_cast<__m128i*>(q + i), _mm_setzero_si128());
  }
  sums_of(q, span);
}

// The bytes of a span to Order::fours.
TANDEM_INLINE void put_in_fours(int8_t* q) {
  const __m512i from =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  unroll<kSpan / 64>([&](auto i) __attribute__((always_inline)) {
    int8_t* at = q + 64 * i.value;
    _mm512_store_si512(at, _mm512_shuffle_epi8(_mm512_load_si512(at), from));
  });
}

// Puts `count` words of one token at every T-th place.
TANDEM_INLINE void spread(const void* from, int64_t count, int64_t T, uint32_t* to) {
  for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * T, static_cast<const std::byte*>(from) + 4 * i, 4);
}

template <int unit>
void encode_units(const TileLayout& layout, const float* x, int64_t ldx, int64_t T, std::byte* tile) {
  uint32_t* q_to = reinterpret_cast<uint32_t*>(tile);
  uint32_t* scale_to = q_to + layout.q_words() * T;
  uint32_t* sum_to = scale_to + layout.scale_words() * T;
  uint32_t* sum32_to = sum_to + layout.sum_words() * T;
  alignas(64) int8_t q[16][kSpan];
  for (int64_t c = 0; c < layout.k; c += kSpan) {
    const int64_t columns = layout.k - c < kSpan ? layout.k - c : kSpan;
    for (int64_t t = 0; t < T; ++t) {
      Span span;
      encode_span<unit>(x + t * ldx + c, columns, q[t], span);
      if (layout.order == Order::fours) put_in_fours(q[t]);
      spread(span.scale, columns / unit, T, scale_to + t);
      spread(span.sum16, columns / 32, T, sum_to + t);
      if constexpr (unit == 256) {
        alignas(16) int16_t sum32[8];
        for (int i = 0; i < 8; ++i) sum32[i] = static_cast<int16_t>(span.sum32[i]);
        spread(sum32, 4, T, sum32_to + t);
      }
    }
    if (T == 1) {
      std::memcpy(q_to, q[0], static_cast<size_t>(columns));
    } else {
      interleave({reinterpret_cast<const std::byte*>(q), kSpan}, columns / 4, T, q_to);
    }
    q_to += columns / 4 * T;
    scale_to += columns / unit * T;
    sum_to += columns / 32 * T;
    sum32_to += columns / 64 * T;
  }
}

// The vectors of RowPlanes.
TANDEM_INLINE void put_in_planes(const int8_t* q, int8_t* to) {
  unroll<4>([&](auto plane) __attribute__((always_inline)) {
    const auto half = [&](int64_t first) __attribute__((always_inline)) {
      const auto load = [&](int64_t at) __attribute__((always_inline)) {
        return _mm256_load_si256(reinterpret_cast<const __m256i*>(q + at + 32 * plane.value));
      };
      return _mm512_inserti64x4(_mm512_castsi256_si512(load(first)), load(first + kSpan), 1);
    };
    const __m512i first = half(0), second = half(kSpan / 2);
    _mm512_store_si512(to + 128 * plane.value, _mm512_unpacklo_epi64(first, second));
    _mm512_store_si512(to + 128 * plane.value + 64, _mm512_unpackhi_epi64(first, second));
  });
}

// All of RowPairs but its scales.
TANDEM_INLINE void put_in_pairs(const int8_t* q, RowPairs& to) {
  const __m512i first = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29);
  unroll<4>([&](auto i) __attribute__((always_inline)) {
    const __m512i a = _mm512_load_si512(q + 128 * i.value), b = _mm512_load_si512(q + 128 * i.value + 64);
    __m512i sum = _mm512_setzero_si512();
    unroll<2>([&](auto half) __attribute__((always_inline)) {
      const __m512i from = _mm512_add_epi32(first, _mm512_set1_epi32(2 * half.value));
      const __m512i v = _mm512_permutex2var_epi32(a, from, b);
      _mm512_store_si512(to.q + 64 * (2 * i.value + half.value), v);
      sum = dot_u8s8<false>(sum, _mm512_set1_epi8(1), v);
    });
    _mm512_storeu_si512(to.start[i.value], _mm512_mullo_epi32(sum, _mm512_set1_epi32(-12)));
  });
}

// The vectors of RowColumns or RowSixteens, of columns in their order.
TANDEM_INLINE void put_in_lanes(Order order, const int8_t* q, int8_t* to) {
  const auto store = [to](int64_t i, __m512i v) __attribute__((always_inline)) { _mm512_store_si512(to + 64 * i, v); };
  const auto lanes = [q](int64_t first, int64_t stride) __attribute__((always_inline)) {
    return four_sixteens(q + first, q + first + stride, q + first + 2 * stride, q + first + 3 * stride);
  };
  unroll<2>([&](auto h) __attribute__((always_inline)) {
    constexpr int half = decltype(h)::value;
    if (order == Order::sub_blocks) {
      unroll<2>([&](auto odd) __attribute__((always_inline)) {
        const int64_t first = 32 * odd.value + 16 * half;
        __m512i a = lanes(first, 64), b = lanes(first + kSpan, 64);
        interleave_words(a, b);
        store(4 * half + odd.value, a);
        store(4 * half + 2 + odd.value, b);
      });
      return;
    }
    __m512i v[4];
    unroll<4>([&](auto i) __attribute__((always_inline)) {
      v[i.value] = order == Order::blocks ? lanes(32 * i.value + 16 * half, 128) : lanes(128 * i.value + 64 * half, 16);
    });
    transpose4(v);
    unroll<4>([&](auto i) __attribute__((always_inline)) {
      store(order == Order::blocks ? 4 * half + i.value : 2 * i.value + half, v[i.value]);
    });
  });
}

template <int unit>
TANDEM_INLINE void encode_row_units(Order order, const float* x, int64_t k, int64_t t, int64_t n, std::byte* encoded) {
  alignas(64) int8_t q[2 * kSpan];
  for (int64_t c = 0; c < k; c += kRowColumns) {
    Span spans[2];
    for (int64_t s = 0; s < 2; ++s) {
      const int64_t first = c + s * kSpan, columns = k - first < kSpan ? (k > first ? k - first : 0) : kSpan;
      encode_span<unit>(x + (columns > 0 ? first : 0), columns, q + s * kSpan, spans[s]);
    }
    const int64_t index = c / kRowColumns * n + t;
    if (order == Order::sixteens) {
      auto& to = reinterpret_cast<RowSixteens*>(encoded)[index];
      put_in_lanes(order, q, to.q);
      for (int i = 0; i < 16; ++i) to.scale[i] = spans[i / 2 % 2].scale[0];
      for (int i = 0; i < 32; ++i) {  // lane 4 * lane + 2 * super-block + half of even or odd vectors
        const int odd = i / 16, lane = i / 4 % 4;
        to.start[i] = -32 * spans[i / 2 % 2].sum16[8 * (i % 2) + 4 * odd + lane];
      }
      continue;
    }
    if (order == Order::planes) {
      auto& to = reinterpret_cast<RowPlanes*>(encoded)[index];
      put_in_planes(q, to.q);
      for (int i = 0; i < 16; ++i) to.scale[i] = spans[i / 8].scale[0];
      for (int i = 0; i < 32; ++i) to.minus[i] = static_cast<int16_t>(-spans[i / 16].sum16[i % 16]);
      continue;
    }
    if (order == Order::pairs) {
      auto& to = reinterpret_cast<RowPairs*>(encoded)[index];
      put_in_pairs(q, to);
      for (int i = 0; i < 64; ++i) to.scale[i / 16][i % 16] = spans[i / 32].scale[i / 4 % 8 * 32 / unit];
      continue;
    }
    auto& to = reinterpret_cast<RowColumns*>(encoded)[index];
    put_in_lanes(order, q, to.q);
    for (int i = 0; i < 16; ++i) {
      const Span& block = spans[i / 8];
      const float scale = block.scale[i % 8 * 32 / unit];
      to.sum[i] = scale * static_cast<float>(block.sum32[i % 8]);
      to.scale[i] = order == Order::sub_blocks ? spans[i % 2].scale[0] : scale;
    }
  }
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
