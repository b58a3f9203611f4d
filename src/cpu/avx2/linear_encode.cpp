// Encodes activations for the AVX2 matrix products; the formats are described in linear.h.
#include "cpu/avx2/linear.h"
#include "cpu/avx2/linear_simd.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// Where the parts of a token being written start.
struct Writer {
  std::byte* columns;
  float* scales;
  float* sums;
  int32_t* centres;
};

// Magnitudes order like their bits, infinity and NaN above everything.
TANDEM_INLINE float largest_magnitude(const float* x, int64_t n) {
  __m256i most = _mm256_setzero_si256();
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  for (int64_t i = 0; i < n; i += 8)
    most = _mm256_max_epi32(most, _mm256_and_si256(load256(x + i), magnitude));
  __m128i half = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1));
  return std::bit_cast<float>(_mm_cvtsi128_si32(half));
}

// 32 floats to int8, in order.
TANDEM_INLINE __m256i quantize32(const float* x, __m256 inverse) {
  __m256i v[4];
  for (int i = 0; i < 4; ++i) v[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), inverse));
  const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
  return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// The sums and centres of 32 columns; i counts those.
TANDEM_INLINE void write_sums(const ActFormat& format, __m256i q, float scale, int64_t i, const Writer& to) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
  __m256i s = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0x4e));
  s = _mm256_add_epi16(
      s, _mm256_shuffle_epi32(s, 0xb1));  // per 16 columns: [sum of even pairs, sum of odd pairs]
  const __m128i low = _mm256_castsi256_si128(s), high = _mm256_extracti128_si256(s, 1);
  const __m128i both = format.sum == 32 ? _mm_add_epi16(low, high) : _mm_unpacklo_epi32(low, high);
  const int64_t n = 32 / format.sum;  // 1 or 2 lanes count
  const __m128i totals = _mm_madd_epi16(both, _mm_set1_epi16(1));
  to.sums[n * i] = scale * static_cast<float>(_mm_cvtsi128_si32(totals));
  if (n == 2) to.sums[n * i + 1] = scale * static_cast<float>(_mm_extract_epi32(totals, 1));
  if (format.centre == 0) return;
  if constexpr (kVnni) {
    to.centres[n * i] = -format.centre * _mm_cvtsi128_si32(totals);
    if (n == 2) to.centres[n * i + 1] = -format.centre * _mm_extract_epi32(totals, 1);
    return;
  }
  const __m128i centres = _mm_mullo_epi16(both, _mm_set1_epi16(static_cast<short>(-format.centre)));
  to.centres[n * i] = _mm_cvtsi128_si32(centres);
  if (n == 2) to.centres[n * i + 1] = _mm_extract_epi32(centres, 1);
}

// One block of 32 or 256 columns; b counts blocks.
TANDEM_INLINE void encode_block(const ActFormat& format, const float* x, int64_t b, const Writer& to) {
  const float most = largest_magnitude(x, format.block);
  const bool finite = most <= 3.402823466e38f;
  const bool zero = !finite || most < 1e-30f;
  const float scale = zero ? (finite ? 0.0f : std::bit_cast<float>(0x7fc00000u)) : most / 127.0f;
  const __m256 inverse = _mm256_set1_ps(zero ? 0.0f : 127.0f / most);
  to.scales[b] = scale;
  for (int64_t c = 0; c < format.block; c += 32) {
    const __m256i q = zero ? _mm256_setzero_si256() : quantize32(x + c, inverse);
    const int64_t column = b * format.block + c;
    if (format.wide) {
      store256(to.columns + 2 * column, _mm256_cvtepi8_epi16(_mm256_castsi256_si128(q)));
      store256(to.columns + 2 * column + 32, _mm256_cvtepi8_epi16(_mm256_extracti128_si256(q, 1)));
    } else {
      store256(to.columns + column, q);
    }
    if (format.sum != 0) write_sums(format, q, scale, column / 32, to);
  }
}

// Puts 256 encoded columns into an order of dwords.
TANDEM_INLINE void reorder(std::byte* columns, ActOrder order) {
  if (order == ActOrder::blocks) {
    __m256i v[8];
    for (int i = 0; i < 8; ++i) v[i] = load256(columns + 32 * i);
    transpose8(v);
    for (int i = 0; i < 8; ++i) store256(columns + 32 * i, v[i]);
    return;
  }
  if (order == ActOrder::halves) {
    for (std::byte* of_128 : {columns, columns + 128}) {
      __m256i v[4];
      for (int i = 0; i < 2; ++i) {
        const __m256i first = load256(of_128 + 64 * i), second = load256(of_128 + 64 * i + 32);
        v[2 * i] = _mm256_permute2x128_si256(first, second, 0x20);
        v[2 * i + 1] = _mm256_permute2x128_si256(first, second, 0x31);
      }
      transpose4(v);
      for (int j = 0; j < 4; ++j) store256(of_128 + 32 * j, v[j]);
    }
    return;
  }
  __m256i v[2][4];
  for (int i = 0; i < 8; ++i) v[i % 2][i / 2] = load256(columns + 32 * i);
  for (int i = 0; i < 2; ++i) {
    transpose4(v[i]);
    for (int j = 0; j < 4; ++j) store256(columns + 32 * (2 * j + i), v[i][j]);
  }
}

}  // namespace

void encode_tokens(const ActFormat& format, const float* x, int64_t ldx, int64_t k, int64_t token0,
                   int64_t token1, std::byte* encoded) {
  const ActLayout at = act_layout(format, k);
  const size_t padded = (static_cast<size_t>(k) + 255) / 256 * 256;
  for (int64_t t = token0; t < token1; ++t) {
    std::byte* base = encoded + static_cast<size_t>(t) * at.stride;
    const float* row = x + t * ldx;
    if (padded != static_cast<size_t>(k)) std::memset(base, 0, at.stride);
    if (format.block == 0) {
      std::memcpy(base, row, static_cast<size_t>(k) * sizeof(float));
      continue;
    }
    const Writer to{base, reinterpret_cast<float*>(base + at.scales),
                    reinterpret_cast<float*>(base + at.sums), reinterpret_cast<int32_t*>(base + at.centres)};
    for (int64_t b = 0; b < k / format.block; ++b) encode_block(format, row + b * format.block, b, to);
    if (format.order != ActOrder::columns) {
      for (size_t c = 0; c < padded; c += 256) reorder(base + c, format.order);
    }
  }
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
