// Attention of few queries (decode) over a cache of Q8_0 or Q4_0, in integers: vpdpbusd multiplies the cache's codes as
// they are, made unsigned by a bias (128 or 8), with signed bytes of the queries and of the softmax's weights.
//
// Both sides keep 16 bits: a number is a code of -32512 .. 32512 in two signed bytes, 256 * high + low, with a product
// each, and a scale of its own (a query's for each block of 32 columns; the weights' for each block of columns and panel
// of positions). The rounding, 2^-16 of the greatest, is far below that of the cache (tests/ops/attention_codes_test.cpp).
//
// Keys. 16 rows' blocks are transposed, so that a lane is a position and a product sums 4 columns: no sums across lanes,
// and the scales of 16 positions are a vector. The transposition is shared by all queries.
// Values. Bytes of 4 rows are interleaved, so that a lane is a column and a product sums 4 positions. A weight takes its
// position's scale of the block before it becomes a code.
// The bias comes off as the sum of the other side's codes, once for a query or panel.
//
// Floors of a position and query with heads of 128 columns: 16 bytes of row over the bandwidth, shared by the queries
// (272 for Q8_0, 144 for Q4_0); 8 vpdpbusd (16 multiplications and additions of floats), about 4 operations for the
// codes of the weights, 2 for their exponentials. Shared by the queries: 20 to transpose and interleave, 16 scalar ones
// to collect the scales.
//
// Head by head, the next panel's keys are fetched into the L1 with the products of keys, its values with those of values: a panel of both and
// the next one are 35 KiB of Q8_0. Fetching values with the keys of their own panel, into the L2, took a quarter longer; of all heads
// together that is the way on Intel (attention_code_heads.h).
//
// Reached on a core of a Zen 5, ns of a query and position with heads of 128 columns, four queries: Q8_0 3.6, Q4_0 3.4 from
// memory, where halves take 4.3, and 3.4, 3.3 and 3.4 from the L3. The products' floor is 1.1 there. The rest: the scales, the
// prefetches, the codes of the weights and, of one query, the transposition. Eight queries from memory: 2.9, 2.8 and 3.2.
#pragma once

#include "cpu/avx512/attention_formats.h"
#include "cpu/avx512/weight_codes.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

void encode_queries(const AttentionCall& call, const CodeWork& w, const CodeFns& keys) {
  for (int64_t i = 0; i < call.n_queries * w.blocks_k; ++i) {
    const float* from = call.q[i / w.blocks_k] + i % w.blocks_k * QK;
    const float scale = scale_of_codes(from, call.scale);
    const QueryCodes codes(from, call.scale, set1(finite_inverse(scale)));
    std::byte* to = w.q + i * 2 * QK;
    for (int h = 0; h < 2; ++h) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16 * h), codes.high[h]);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + QK + 16 * h), codes.low[h]);
    }
    w.q_scale[i] = scale;
    w.q_start[i] = -keys.bias * codes.sum;
  }
}

TANDEM_INLINE __m512i broadcast_4(const std::byte* p) {
  int32_t word;
  memcpy(&word, p, sizeof word);
  return _mm512_set1_epi32(word);
}

// Adds the products of all queries with block b of two groups' keys to the scores. A group that is not there reads the
// rows of the first one.
template <class Codes>
void dot_block(const CodeWork& w, const CodeRows& keys, int64_t n_queries, int64_t group, int64_t b) {
  const int64_t second = group + 1 < keys.n_groups ? group + 1 : group;
  const size_t at = static_cast<size_t>(b) * Codes::kBytes;
  __m512i k0[8], k1[8];
  Codes::keys(keys.groups[group] + at, keys.row_bytes, k0);
  Codes::keys(keys.groups[second] + at, keys.row_bytes, k1);
  const fp16_t* scales = w.k_scales + b * kPanel;
  const Vec scale0 = load_f16(scales + group * kGroup), scale1 = load_f16(scales + second * kGroup);
  for (int64_t q = 0; q < n_queries; ++q) {
    const std::byte* code = w.q + (q * w.blocks_k + b) * 2 * QK;
    const __m512i zero_sum = _mm512_setzero_si512(), start = _mm512_set1_epi32(w.q_start[q * w.blocks_k + b]);
    __m512i high0 = zero_sum, high1 = zero_sum, low0 = start, low1 = start;
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const __m512i high = broadcast_4(code + 4 * j), low = broadcast_4(code + QK + 4 * j);
      high0 = _mm512_dpbusd_epi32(high0, k0[j], high);
      high1 = _mm512_dpbusd_epi32(high1, k1[j], high);
      low0 = _mm512_dpbusd_epi32(low0, k0[j], low);
      low1 = _mm512_dpbusd_epi32(low1, k1[j], low);
    }
    float* s = w.s + q * kPanel + group * kGroup;
    const Vec scale = set1(w.q_scale[q * w.blocks_k + b]);
    store(s, fma(join(high0, low0), scale0 * scale, load(s)));
    store(s + kGroup, fma(join(high1, low1), scale1 * scale, load(s + kGroup)));
  }
}

template <class Codes>
void dot_codes(const CodeWork& w, const CodeRows& keys, const CodesAhead& ahead, int64_t n_queries) {
  const Scales scales{keys, w.blocks_k, Codes::kBytes, w.k_scales};
  zero(w.s, n_queries * kPanel);
  scales.copy(0);
  scales.copy(1);
  for (int64_t g = 0; g < keys.n_groups; g += 2) {
    scales.copy(g + 2);
    scales.copy(g + 3);
    for (int64_t b = 0; b < w.blocks_k; ++b) {
      ahead.fetch_part<Codes::kBytes>(g, b);
      ahead.fetch_part<Codes::kBytes>(g + 1, b);
      dot_block<Codes>(w, keys, n_queries, g, b);
    }
  }
}

// A panel's weights of one query for a block of columns: bytes in the order that packing gives.
struct CodedWeights {
  alignas(64) std::byte high[kPanel], low[kPanel];
  float scale;
  int32_t sum;

  TANDEM_INLINE void encode(const float* weights, const Vec (&scales)[kGroups]) {
    const WeightCodes codes(weights, scales);
    _mm512_store_si512(high, codes.high);
    _mm512_store_si512(low, codes.low);
    scale = codes.scale;
    sum = codes.sum();
  }
};

// acc = acc * factor + weights times values, for kQueries from the q-th on and block b of columns. kMins: every block of a row
// has a minimum, too.
template <class Codes, int kQueries, bool kMins>
void update_block(const CodeWork& w, const CodeRows& values, const CodesAhead& ahead, int64_t q, int64_t b,
                  float* acc, int64_t ld) {
  Vec scales[kGroups];
  for (int64_t i = 0; i < kGroups; ++i) scales[i] = load_f16(w.v_scales + b * kPanel + i * kGroup);
  CodedWeights weights[kQueries];
  __m512i high[kQueries][2], low[kQueries][2];
#pragma GCC unroll 4
  for (int i = 0; i < kQueries; ++i) {
    weights[i].encode(w.s + (q + i) * kPanel, scales);
    high[i][0] = high[i][1] = _mm512_setzero_si512();
    low[i][0] = low[i][1] = _mm512_set1_epi32(-Codes::kBias * weights[i].sum);
  }
  for (int64_t g = 0; g < values.n_groups; ++g) {
    if (q == 0) ahead.fetch_part<Codes::kBytes>(g, b);
    const std::byte* block = values.groups[g] + static_cast<size_t>(b) * Codes::kBytes;
#pragma GCC unroll 2
    for (int64_t half = 0; half < 2; ++half, block += 8 * values.row_bytes) {
      __m512i v[2][2];
      Codes::values(block, values.row_bytes, v);
#pragma GCC unroll 2
      for (int64_t t = 0; t < 2; ++t) {
        const int64_t at = 4 * WeightCodes::at(4 * g + 2 * half + t);
#pragma GCC unroll 4
        for (int i = 0; i < kQueries; ++i) {
          const __m512i y = broadcast_4(weights[i].high + at), z = broadcast_4(weights[i].low + at);
          high[i][0] = _mm512_dpbusd_epi32(high[i][0], v[t][0], y);
          high[i][1] = _mm512_dpbusd_epi32(high[i][1], v[t][1], y);
          low[i][0] = _mm512_dpbusd_epi32(low[i][0], v[t][0], z);
          low[i][1] = _mm512_dpbusd_epi32(low[i][1], v[t][1], z);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kQueries; ++i) {
    Vec x0 = join(high[i][0], low[i][0]), x1 = join(high[i][1], low[i][1]);
    Codes::put_in_order(x0, x1);
    const Vec scale = set1(weights[i].scale), factor = set1(w.factor[q + i]);
    float* y = acc + (q + i) * ld + b * QK;
    Vec y0 = load(y) * factor, y1 = load(y + kLanes) * factor;
    if constexpr (kMins) {
      const Vec mins = set1(weighted_mins(w, q + i, b));
      y0 = y0 + mins;
      y1 = y1 + mins;
    }
    store(y, fma(x0, scale, y0));
    store(y + kLanes, fma(x1, scale, y1));
  }
}

template <class Codes, bool kMins = false>
void update_codes(const CodeWork& w, const CodeRows& values, const CodesAhead& ahead,
                  const AttentionCall& call) {
  Scales{values, w.blocks_v, Codes::kBytes, w.v_scales}.copy_panel();
  for (int64_t b = 0; b < w.blocks_v; ++b) {
    for (int64_t q = 0; q < call.n_queries; q += kQueriesAtOnce) {
      float* acc = call.acc;
      switch (call.n_queries - q) {
        case 1: update_block<Codes, 1, kMins>(w, values, ahead, q, b, acc, call.head_dim_v); break;
        case 2: update_block<Codes, 2, kMins>(w, values, ahead, q, b, acc, call.head_dim_v); break;
        case 3: update_block<Codes, 3, kMins>(w, values, ahead, q, b, acc, call.head_dim_v); break;
        default: update_block<Codes, 4, kMins>(w, values, ahead, q, b, acc, call.head_dim_v); break;
      }
    }
  }
}

template <class Codes>
constexpr CodeFns kCodeFns{Codes::kBias, Codes::kBytes, dot_codes<Codes>, update_codes<Codes>};

CodeFns code_fns(DType dtype) {
  return dtype == DType::Q8_0 ? kCodeFns<CodesQ8> : dtype == DType::Q4_0 ? kCodeFns<CodesQ4> : CodeFns{};
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
