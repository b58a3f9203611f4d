// Attention of few queries (decode) over a quantized cache, in integers: the cache's codes become words of 16 bits, which vpmaddwd
// (with AVX-VNNI vpdpwssd) multiplies with words of the queries and of the softmax's weights, 16 columns at a time, where floats
// have 8. Both have codes of -32512 .. 32512 and scales as in avx512/attention_codes.h; bytes would not do, because vpmaddubsw
// saturates, and two bytes for 16 bits would take as many products.
//
// Keys. 4 rows' blocks are transposed in each half of the vectors: a lane is a row's first or second 16 columns, so the sums of a
// block take the row's scale together, and the halves are added at the end of the head. All queries share the transposed words.
// Values. Bytes of 4 rows are interleaved, so that a lane is a column and a product sums 2 positions. A weight takes its
// position's scale of the block before it becomes a code.
//
// Floors of a position and query with heads of 128 columns, in vector operations: 18 for the scores (8 products, 7 sums, a
// conversion, 2 for the scales), 16 for the values (with AVX-VNNI 10 and 8), 4 for the codes of the weights, 2 for their
// exponentials. Shared by the queries: 16 for the words of keys and 16 for those of values (four bits: 20 and 24), 4 to collect
// scales of values. Halves take 32 products, 32 conversions and few more: integers save bytes of the cache, and hardly operations.
//
// Reached on a core of a Zen 5, ns of a query and position with heads of 128 columns, four queries: Q8_0 5.2 from the L3 and 5.4
// from memory, Q4_0 5.8 and 5.9, where halves take 5.5 and 5.7; with AVX-VNNI Q8_0 4.6 and 4.9, Q4_0 5.0 and 5.0. That is 3.5 of
// 4 vector operations a cycle. One query: Q8_0 8.6 and 10.8, Q4_0 9.6 and 9.8, halves 9.3 and 19. Eight: Q8_0 5.0, halves 10.
#pragma once

#include "cpu/avx2/attention_formats.h"
#include "cpu/avx2/integer_products.h"
#include "cpu/simd/attention_codes.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

TANDEM_INLINE __m256i load_words(const void* p) {
  return _mm256_load_si256(static_cast<const __m256i*>(p));
}
TANDEM_INLINE void store_words(void* p, __m256i v) {
  _mm256_store_si256(static_cast<__m256i*>(p), v);
}
TANDEM_INLINE int32_t sum_int_lanes(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
// Greatest magnitude of the lanes; NaN, if there is one, because its bits are greater than infinity's.
TANDEM_INLINE float magnitude_or_nan(__m256i max_of_bits) {
  __m128i m = _mm_max_epu32(_mm256_castsi256_si128(max_of_bits), _mm256_extracti128_si256(max_of_bits, 1));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
  return _mm_cvtss_f32(_mm_castsi128_ps(m));
}
TANDEM_INLINE __m256i magnitude_bits(Vec v) {
  return _mm256_castps_si256(vabs(v));
}

// Signed bytes as words.
TANDEM_INLINE __m256i even_bytes(__m256i v) {
  return _mm256_maddubs_epi16(_mm256_set1_epi16(0x0001), v);
}
TANDEM_INLINE __m256i odd_bytes(__m256i v) {
  return _mm256_maddubs_epi16(_mm256_set1_epi16(0x0100), v);
}

// A query's columns of a block, in the order of load_keys(). The first half of a vector is for the first 16 columns.
struct CodedQuery {
  int16_t codes[8][16];
  int32_t start[8];  // what takes off the bias, of each half
  float sum[8];      // of each half, for the minimums
  float scale[8];
};
static_assert(sizeof(CodedQuery) == kQueryBytes);

void encode_queries(const AttentionCall& call, const CodeWork& w, const CodeFns& keys) {
  for (int64_t i = 0; i < call.n_queries * w.blocks_k; ++i) {
    const float* from = call.q[i / w.blocks_k] + i % w.blocks_k * QK;
    Vec x[4];
    __m256i most = _mm256_setzero_si256();
    for (int64_t v = 0; v < 4; ++v) {
      x[v] = load(from + v * kLanes) * set1(call.scale);
      most = _mm256_max_epu32(most, magnitude_bits(x[v]));
    }
    const float scale = magnitude_or_nan(most) / kMaxCode;
    const Vec inverse = set1(finite_inverse(scale));
    __m256i c[4];
    for (int64_t v = 0; v < 4; ++v) c[v] = _mm256_cvtps_epi32(x[v] * inverse);
    // Columns 0 .. 7 and 16 .. 23, then 8 .. 15 and 24 .. 31.
    const __m256i words[2] = {_mm256_permute4x64_epi64(_mm256_packs_epi32(c[0], c[2]), 0xd8),
                              _mm256_permute4x64_epi64(_mm256_packs_epi32(c[1], c[3]), 0xd8)};
    CodedQuery& to = reinterpret_cast<CodedQuery*>(w.q)[i];
    // Bytes of words 0 and 2 of a half, of 1 and 3, of 4 and 6, of 5 and 7.
    const int32_t pairs[4] = {0x05040100, 0x07060302, 0x0d0c0908, 0x0f0e0b0a};
    for (int j = 0; j < 8; ++j)
      store_words(to.codes[j], _mm256_shuffle_epi8(words[j / 4], _mm256_set1_epi32(pairs[j % 4])));
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum = _mm256_add_epi32(_mm256_madd_epi16(words[0], ones), _mm256_madd_epi16(words[1], ones));
    sum = _mm256_add_epi32(sum, _mm256_shuffle_epi32(sum, 0x4e));
    sum = _mm256_add_epi32(sum, _mm256_shuffle_epi32(sum, 0xb1));
    store_words(to.start, _mm256_mullo_epi32(sum, _mm256_set1_epi32(-keys.bias)));
    store(to.sum, _mm256_cvtepi32_ps(sum) * set1(scale));
    store(to.scale, set1(scale));
  }
}

// Words of a block of 4 rows: 32-bit lane i of each half is of row i. words[2 * j] has columns 4 * j and 4 * j + 2 of the half, words
// [2 * j + 1] the ones behind them.
template <class Codes>
TANDEM_INLINE void load_keys(const std::byte* row, size_t row_bytes, __m256i (&words)[8]) {
  const __m256i r0 = Codes::raw(row), r1 = Codes::raw(row + row_bytes);
  const __m256i r2 = Codes::raw(row + 2 * row_bytes), r3 = Codes::raw(row + 3 * row_bytes);
  const __m256i low0 = _mm256_unpacklo_epi32(r0, r1), high0 = _mm256_unpackhi_epi32(r0, r1);
  const __m256i low1 = _mm256_unpacklo_epi32(r2, r3), high1 = _mm256_unpackhi_epi32(r2, r3);
  const __m256i x[4] = {_mm256_unpacklo_epi64(low0, low1), _mm256_unpackhi_epi64(low0, low1),
                        _mm256_unpacklo_epi64(high0, high1), _mm256_unpackhi_epi64(high0, high1)};
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m256i codes = Codes::codes(x[j]);
    words[2 * j] = even_bytes(codes);
    words[2 * j + 1] = odd_bytes(codes);
  }
}

TANDEM_INLINE Vec load_four_twice(const fp16_t* p) {
  int64_t four;
  memcpy(&four, p, sizeof four);
  return _mm256_cvtph_ps(_mm_set1_epi64x(four));
}

// Products of kQueries with 4 adjacent rows; the two halves of dot[query] are partial sums. Fetches group `fetched` of `ahead`.
template <class Codes, int kQueries>
TANDEM_INLINE void dot_rows(const CodedQuery* query, int64_t n_blocks, const std::byte* row, size_t row_bytes,
                            const fp16_t* scales, const fp16_t* mins, const CodesAhead& ahead, int64_t fetched,
                            Vec (&dot)[kQueries]) {
#pragma GCC unroll 4
  for (Vec& v : dot) v = set1(0.0f);
  for (int64_t b = 0; b < n_blocks; ++b, row += Codes::kBytes, scales += kPanel, ++query) {
    ahead.fetch_part<Codes::kBytes>(fetched, b);
    __m256i words[8];
    load_keys<Codes>(row, row_bytes, words);
    const Vec scale = load_four_twice(scales);
    const Vec least = Codes::kMinAt != 0 ? load_four_twice(mins + b * kPanel) : set1(0.0f);
#pragma GCC unroll 4
    for (int i = 0; i < kQueries; ++i) {
      const CodedQuery& q = query[i * n_blocks];
      __m256i sum = Codes::kBias != 0 ? load_words(q.start) : _mm256_setzero_si256();
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) add_scaled(sum, words[j], load_words(q.codes[j]));
      dot[i] = fma(_mm256_cvtepi32_ps(sum), scale * load(q.scale), dot[i]);
      if constexpr (Codes::kMinAt != 0) dot[i] = fma(least, load(q.sum), dot[i]);
    }
  }
}

// The scores of kQueries from the q-th on and a group's keys.
template <class Codes, int kQueries>
void dot_group(const CodeWork& w, const CodeRows& keys, const CodesAhead& ahead, int64_t group, int64_t q) {
  const CodedQuery* query = reinterpret_cast<const CodedQuery*>(w.q) + q * w.blocks_k;
  const int64_t none = kGroups, fetched = q == 0 ? group : none;
  const std::byte* row = keys.groups[group];
  const fp16_t *scales = w.k_scales + group * kGroup, *mins = w.k_mins + group * kGroup;
  Vec dot[2][kQueries];
  dot_rows<Codes>(query, w.blocks_k, row, keys.row_bytes, scales, mins, ahead, fetched, dot[0]);
  dot_rows<Codes>(query, w.blocks_k, row + 4 * keys.row_bytes, keys.row_bytes, scales + 4, mins + 4, ahead,
                  none, dot[1]);
#pragma GCC unroll 4
  for (int i = 0; i < kQueries; ++i) {
    const Vec low = _mm256_permute2f128_ps(dot[0][i], dot[1][i], 0x20);
    store(w.s + (q + i) * kPanel + group * kGroup, low + _mm256_permute2f128_ps(dot[0][i], dot[1][i], 0x31));
  }
}
template <class Codes>
void dot_codes(const CodeWork& w, const CodeRows& keys, const CodesAhead& ahead, int64_t n_queries) {
  const Scales scales{keys, w.blocks_k, Codes::kBytes, w.k_scales};
  const Scales mins{keys, w.blocks_k, Codes::kBytes, w.k_mins, Codes::kMinAt};
  if (keys.n_groups < kGroups) zero(w.s, n_queries * kPanel);
  scales.copy(0);
  if (Codes::kMinAt != 0) mins.copy(0);
  for (int64_t g = 0; g < keys.n_groups; ++g) {
    scales.copy(g + 1);
    if (Codes::kMinAt != 0) mins.copy(g + 1);
    for (int64_t q = 0; q < n_queries; q += kQueriesAtOnce) {
      switch (n_queries - q) {
        case 1: dot_group<Codes, 1>(w, keys, ahead, g, q); break;
        case 2: dot_group<Codes, 2>(w, keys, ahead, g, q); break;
        case 3: dot_group<Codes, 3>(w, keys, ahead, g, q); break;
        default: dot_group<Codes, 4>(w, keys, ahead, g, q); break;
      }
    }
  }
}

// A panel's weights of one query for a block of columns.
struct CodedWeights {
  alignas(32) int16_t codes[kPanel];
  float scale;
  int32_t sum;  // of the codes, if they have a bias
  float mins;   // the sum of the weights times the minimums

  TANDEM_INLINE void add_mins(const float* weights, const Vec (&least)[kGroups]) {
    Vec total = set1(0.0f);
#pragma GCC unroll 8
    for (int64_t i = 0; i < kGroups; ++i) total = fma(load(weights + i * kGroup), least[i], total);
    mins = sum_lanes(total);
  }
  TANDEM_INLINE void encode(const float* weights, const Vec (&scales)[kGroups], bool biased) {
    Vec x[kGroups];
    __m256i most = _mm256_setzero_si256(), total = most;
#pragma GCC unroll 8
    for (int64_t i = 0; i < kGroups; ++i) {
      x[i] = load(weights + i * kGroup) * scales[i];
      most = _mm256_max_epu32(most, magnitude_bits(x[i]));
    }
    scale = magnitude_or_nan(most) * (1.0f / kMaxCode);
    const Vec inverse = set1(finite_inverse(scale));
#pragma GCC unroll 4
    for (int64_t i = 0; i < kGroups; i += 2) {
      const __m256i low = _mm256_cvtps_epi32(x[i] * inverse), high = _mm256_cvtps_epi32(x[i + 1] * inverse);
      const __m256i c = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
      store_words(codes + i * kGroup, c);
      if (biased) total = _mm256_add_epi32(total, _mm256_madd_epi16(c, _mm256_set1_epi16(1)));
    }
    sum = biased ? sum_int_lanes(total) : 0;
  }
};

TANDEM_INLINE __m256i broadcast_pair(const int16_t* p) {
  int32_t word;
  memcpy(&word, p, sizeof word);
  return _mm256_set1_epi32(word);
}

// Words of 4 rows, of 8 columns a vector: those of rows 0 and 1 in `even`, of 2 and 3 in `odd`.
template <class Codes>
TANDEM_INLINE void join_rows(__m256i rows02, __m256i rows13, __m256i (&even)[2], __m256i (&odd)[2]) {
  const __m256i x[2] = {_mm256_unpacklo_epi16(rows02, rows13), _mm256_unpackhi_epi16(rows02, rows13)};
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m256i codes = Codes::codes(x[i]);
    even[i] = even_bytes(codes);
    odd[i] = odd_bytes(codes);
  }
}

// acc = acc * factor + weights times values, for kQueries from the q-th on and kHalves of block b of columns from kFirst on.
template <class Codes, int kQueries, int kFirst, int kHalves>
TANDEM_INLINE void update_halves(const CodeWork& w, const CodedWeights* weights, const CodeRows& values,
                                 const CodesAhead& ahead, int64_t q, int64_t b, float* acc, int64_t ld) {
  __m256i sum[kQueries][kHalves][2];
#pragma GCC unroll 4
  for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h)
      sum[i][h][0] = sum[i][h][1] = _mm256_set1_epi32(-Codes::kBias * weights[i].sum);
  }
  for (int64_t g = 0; g < values.n_groups; ++g) {
    if (q == 0 && kFirst == 0) ahead.fetch_part<Codes::kBytes>(g, b);
    const std::byte* row = values.groups[g] + static_cast<size_t>(b) * Codes::kBytes;
#pragma GCC unroll 2
    for (int64_t four = 0; four < kGroup / 4; ++four, row += 4 * values.row_bytes) {
      __m256i even[kHalves][2], odd[kHalves][2];
      const __m256i r0 = Codes::raw(row), r1 = Codes::raw(row + values.row_bytes);
      const __m256i r2 = Codes::raw(row + 2 * values.row_bytes), r3 = Codes::raw(row + 3 * values.row_bytes);
      if constexpr (kFirst == 0)
        join_rows<Codes>(_mm256_unpacklo_epi8(r0, r2), _mm256_unpacklo_epi8(r1, r3), even[0], odd[0]);
      if constexpr (kFirst + kHalves == 2)
        join_rows<Codes>(_mm256_unpackhi_epi8(r0, r2), _mm256_unpackhi_epi8(r1, r3), even[kHalves - 1],
                         odd[kHalves - 1]);
      const int64_t at = g * kGroup + 4 * four;
#pragma GCC unroll 4
      for (int i = 0; i < kQueries; ++i) {
        const __m256i y = broadcast_pair(weights[i].codes + at),
                      z = broadcast_pair(weights[i].codes + at + 2);
#pragma GCC unroll 2
        for (int h = 0; h < kHalves; ++h) {
          add_scaled(sum[i][h][0], even[h][0], y);
          add_scaled(sum[i][h][1], even[h][1], y);
          add_scaled(sum[i][h][0], odd[h][0], z);
          add_scaled(sum[i][h][1], odd[h][1], z);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kQueries; ++i) {
    const Vec scale = set1(weights[i].scale), factor = set1(w.factor[q + i]);
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) {
      float* y = acc + (q + i) * ld + b * QK + (kFirst + h) * kLanes;
      const __m256i low = _mm256_permute2x128_si256(sum[i][h][0], sum[i][h][1], 0x20);
      const __m256i high = _mm256_permute2x128_si256(sum[i][h][0], sum[i][h][1], 0x31);
      Vec y0 = load(y) * factor, y1 = load(y + 16) * factor;
      if constexpr (Codes::kMinAt != 0) {
        y0 = y0 + set1(weights[i].mins);
        y1 = y1 + set1(weights[i].mins);
      }
      store(y, fma(_mm256_cvtepi32_ps(low), scale, y0));
      store(y + 16, fma(_mm256_cvtepi32_ps(high), scale, y1));
    }
  }
}

// A group's scales of a block of columns. They go into a vector one by one: where they were stored and then read together, the
// weights' codes would wait until all stores are done.
TANDEM_INLINE Vec load_scales(const std::byte* block, size_t row_bytes) {
  const auto scale = [&](size_t row) {
    int16_t d;
    memcpy(&d, block + row * row_bytes, sizeof d);
    return d;
  };
  __m128i d = _mm_cvtsi32_si128(static_cast<uint16_t>(scale(0)));
  d = _mm_insert_epi16(d, scale(1), 1);
  d = _mm_insert_epi16(d, scale(2), 2);
  d = _mm_insert_epi16(d, scale(3), 3);
  d = _mm_insert_epi16(d, scale(4), 4);
  d = _mm_insert_epi16(d, scale(5), 5);
  d = _mm_insert_epi16(d, scale(6), 6);
  d = _mm_insert_epi16(d, scale(7), 7);
  return _mm256_cvtph_ps(d);
}

// Those of a panel, 0 where there is no row; `at` bytes behind a row's first.
TANDEM_INLINE void load_panel(const CodeRows& rows, size_t at, Vec (&to)[kGroups]) {
#pragma GCC unroll 8
  for (int64_t g = 0; g < kGroups; ++g)
    to[g] = g < rows.n_groups ? load_scales(rows.groups[g] + at, rows.row_bytes) : set1(0.0f);
  if (rows.n % kGroup == 0) return;
  Vec& last = to[rows.n / kGroup];
  last = keep(_mm256_castsi256_ps(first_lanes(rows.n % kGroup)), last);
}

// For kQueries from the q-th on; the weights of some blocks are encoded at a time, because they wait for a maximum each.
template <class Codes, int kQueries>
void update_queries(const CodeWork& w, const CodeRows& values, const CodesAhead& ahead, int64_t q, float* acc,
                    int64_t ld) {
  constexpr int64_t kBlocks = 4;
  CodedWeights weights[kBlocks][kQueries];
  for (int64_t first = 0; first < w.blocks_v; first += kBlocks) {
    const int64_t n = lesser(w.blocks_v - first, kBlocks);
    for (int64_t b = 0; b < n; ++b) {
      const size_t at = static_cast<size_t>(first + b) * Codes::kBytes;
      Vec scales[kGroups];
      load_panel(values, at, scales);
      for (int i = 0; i < kQueries; ++i)
        weights[b][i].encode(w.s + (q + i) * kPanel, scales, Codes::kBias != 0);
      if constexpr (Codes::kMinAt != 0) {
        load_panel(values, at + Codes::kMinAt, scales);
        for (int i = 0; i < kQueries; ++i) weights[b][i].add_mins(w.s + (q + i) * kPanel, scales);
      }
    }
    for (int64_t b = 0; b < n; ++b) {
      if constexpr (kQueries <= 2) {
        update_halves<Codes, kQueries, 0, 2>(w, weights[b], values, ahead, q, first + b, acc, ld);
      } else {
        update_halves<Codes, kQueries, 0, 1>(w, weights[b], values, ahead, q, first + b, acc, ld);
        update_halves<Codes, kQueries, 1, 1>(w, weights[b], values, ahead, q, first + b, acc, ld);
      }
    }
  }
}
template <class Codes>
void update_codes(const CodeWork& w, const CodeRows& values, const CodesAhead& ahead,
                  const AttentionCall& call) {
  for (int64_t q = 0; q < call.n_queries; q += kQueriesAtOnce) {
    switch (call.n_queries - q) {
      case 1: update_queries<Codes, 1>(w, values, ahead, q, call.acc, call.head_dim_v); break;
      case 2: update_queries<Codes, 2>(w, values, ahead, q, call.acc, call.head_dim_v); break;
      case 3: update_queries<Codes, 3>(w, values, ahead, q, call.acc, call.head_dim_v); break;
      default: update_queries<Codes, 4>(w, values, ahead, q, call.acc, call.head_dim_v); break;
    }
  }
}

template <class Codes>
constexpr CodeFns kCodeFns{Codes::kBias, Codes::kBytes, dot_codes<Codes>, update_codes<Codes>};

CodeFns code_fns(DType dtype) {
  switch (dtype) {
    case DType::Q8_0: return kCodeFns<CodesQ8>;
    case DType::Q4_0: return kCodeFns<CodesQ4>;
    case DType::Q4_1: return kCodeFns<CodesQ4WithMin>;
    case DType::Q5_0: return kCodeFns<CodesQ5>;
    case DType::Q5_1: return kCodeFns<CodesQ5WithMin>;
    case DType::IQ4_NL: return kCodeFns<CodesIQ4>;
    default: return {};
  }
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
