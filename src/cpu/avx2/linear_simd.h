// Small vector helpers of the AVX2 matrix products. Everything is inlined: nothing here may become a symbol.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "base/fp16.h"
#include "cpu/avx2/integer_products.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

TANDEM_INLINE __m256i load256(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
TANDEM_INLINE __m128i load128(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
TANDEM_INLINE void store256(void* p, __m256i v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), v);
}

TANDEM_INLINE uint32_t load_u32(const void* p) {
  uint32_t v;
  std::memcpy(&v, p, 4);
  return v;
}
// Four bytes from p in each 32-bit lane: one load, no shuffle.
TANDEM_INLINE __m256i broadcast_u32(const void* p) {
  return _mm256_set1_epi32(static_cast<int>(load_u32(p)));
}

// Four bytes from p, each eight times: the bits of 32 weights.
TANDEM_INLINE __m256i each_eight_times(const void* p) {
  return _mm256_shuffle_epi8(broadcast_u32(p),
                             _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
}

TANDEM_INLINE float sum_lanes(__m256 v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

// Lane c of vector r becomes lane r of vector c.
TANDEM_INLINE void transpose8(__m256i (&v)[8]) {
  __m256i a[8], b[8];
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
    a[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
    v[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
  }
}

TANDEM_INLINE void transpose8(__m256 (&v)[8]) {
  __m256i bits[8];
  for (int i = 0; i < 8; ++i) bits[i] = _mm256_castps_si256(v[i]);
  transpose8(bits);
  for (int i = 0; i < 8; ++i) v[i] = _mm256_castsi256_ps(bits[i]);
}

// In both halves alike, lane c of vector r becomes lane r of vector c.
TANDEM_INLINE void transpose4(__m256i (&v)[4]) {
  const __m256i low01 = _mm256_unpacklo_epi32(v[0], v[1]), high01 = _mm256_unpackhi_epi32(v[0], v[1]);
  const __m256i low23 = _mm256_unpacklo_epi32(v[2], v[3]), high23 = _mm256_unpackhi_epi32(v[2], v[3]);
  v[0] = _mm256_unpacklo_epi64(low01, low23);
  v[1] = _mm256_unpackhi_epi64(low01, low23);
  v[2] = _mm256_unpacklo_epi64(high01, high23);
  v[3] = _mm256_unpackhi_epi64(high01, high23);
}

// Prefetches `bytes` bytes at p + `distance`; they may lie outside the tensor.
template <auto Hint>  // an _mm_hint in GCC, an int in clang
TANDEM_INLINE void prefetch(const void* p, int64_t distance, size_t bytes) {
  const uintptr_t from = reinterpret_cast<uintptr_t>(p) + static_cast<uintptr_t>(distance);
  for (size_t i = 0; i < bytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(from + i), Hint);
}
// Dot products read the weights once, in order. Prefetching across page ends, where the hardware prefetcher
// stops, makes them 1.4 times as fast from memory on Sapphire Rapids: 85-95 % of a bare read loop.
TANDEM_INLINE void prefetch_ahead(const void* p, size_t bytes) {
  prefetch<_MM_HINT_T0>(p, 4096, bytes);
}

// Signed integers plus 128.
TANDEM_INLINE __m256i plus_128(__m256i w) {
  return _mm256_xor_si256(w, _mm256_set1_epi8(static_cast<char>(0x80)));
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
