// Attention of few queries over a cache of KIVI4 or KIVI2 (gguf/kivi.h), in integers as attention_codes.h has them. The blocks
// before the first open one are read so; those from there on, a text's newest, as floats (simd/attention.h), and the two
// results are merged.
//
// Keys. A channel's scale and minimum are those of 32 positions: for each group the queries take the scales before they become
// codes of 16 bits, with one scale for the head, and their products with the minimums are where the scores begin. So a position
// has no scale, and codes no bias.
// Values. As of the other types, and the weights times the minimums of a block of columns, which all its columns share.
//
// Of a query and position with heads of 128 columns, about 3 operations for the codes of the queries (100 for a group of 32);
// the products are those of Q4_0. Reached on a core of a Zen 4 from memory, ns of a query and position, four queries: KIVI4 4.7,
// KIVI2 4.2, where Q8_0 takes 5.1, Q4_0 4.1 and halves 7.0.
#pragma once

#include "cpu/avx512/attention_codes.h"
#include "cpu/simd/attention.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

using KeyCodes4 = CodesNibbles<0, 16, 0>;
using KeyCodes2 = CodesPairs<0, 8>;
using ValueCodes4 = CodesNibbles<offsetof(BlockQ4_1, qs), sizeof(BlockQ4_1), 0>;
using ValueCodes2 = CodesPairs<offsetof(BlockKivi2, qs), sizeof(BlockKivi2)>;

bool takes_kivi(const AttentionCall& call) {
  return is_kivi(call.k_dtype) && is_kivi(call.v_dtype) && call.n_queries <= kFewQueries &&
         call.head_dim_k % QK == 0 && call.head_dim_v % QK == 0;
}

// The first position of the first open block, or kv_end.
int64_t end_of_closed(const AttentionCall& call) {
  int64_t end = call.kv_begin;
  while (end < call.kv_end && call.open_of[call.block_table[end / kKiviGroup]] < 0) end += kKiviGroup;
  return end < call.kv_end ? end : call.kv_end;
}

// Turns the queries times a group's scales into codes; the 32 scores of each query begin with its product with the minimums.
void begin_group(const AttentionCall& call, const CodeWork& w, const std::byte* group, int64_t position) {
  const auto *d = reinterpret_cast<const fp16_t*>(group), *m = d + call.head_dim_k;
  const __m512i half = _mm512_set1_epi32(128);
  for (int64_t q = 0; q < call.n_queries; ++q) {
    const float* from = call.q[q];
    __m512i most = _mm512_setzero_si512();
    Vec start = set1(0.0f);
    for (int64_t c = 0; c < call.head_dim_k; c += kLanes) {
      const Vec x = load(from + c);
      most = _mm512_max_epu32(most, magnitude_bits(x * load_f16(d + c)));
      start = fma(x, load_f16(m + c), start);
    }
    const float scale = magnitude_or_nan(most) / kMaxCode;
    const Vec inverse = set1(finite_inverse(scale));
    std::byte* to = w.q + q * w.blocks_k * 2 * QK;
    for (int64_t c = 0; c < call.head_dim_k; c += kLanes) {
      const __m512i code = _mm512_cvtps_epi32(load(from + c) * load_f16(d + c) * inverse);
      const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(code, half), 8);
      std::byte* at = to + c / QK * 2 * QK + c % QK;
      _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm512_cvtepi32_epi8(high));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(at + QK), _mm512_cvtepi32_epi8(code));
    }
    w.q_scale[q] = scale * call.scale;
    const Vec first = set1(sum_lanes(start) * call.scale);
    store(w.s + q * kPanel + position, first);
    store(w.s + q * kPanel + position + kLanes, first);
  }
}

// Adds the products of all queries with block b of a group's keys to the scores.
template <class Codes>
void dot_group(const CodeWork& w, const CodeRows& keys, int64_t n_queries, int64_t group, int64_t b) {
  const size_t at = static_cast<size_t>(b) * Codes::kBytes;
  __m512i k0[8], k1[8];
  Codes::keys(keys.groups[group] + at, keys.row_bytes, k0);
  Codes::keys(keys.groups[group + 1] + at, keys.row_bytes, k1);
  for (int64_t q = 0; q < n_queries; ++q) {
    const std::byte* code = w.q + (q * w.blocks_k + b) * 2 * QK;
    __m512i high0 = _mm512_setzero_si512(), high1 = high0, low0 = high0, low1 = high0;
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const __m512i high = broadcast_4(code + 4 * j), low = broadcast_4(code + QK + 4 * j);
      high0 = _mm512_dpbusd_epi32(high0, k0[j], high);
      high1 = _mm512_dpbusd_epi32(high1, k1[j], high);
      low0 = _mm512_dpbusd_epi32(low0, k0[j], low);
      low1 = _mm512_dpbusd_epi32(low1, k1[j], low);
    }
    float* s = w.s + q * kPanel + group * kGroup;
    const Vec scale = set1(w.q_scale[q]);
    store(s, fma(join(high0, low0), scale, load(s)));
    store(s + kGroup, fma(join(high1, low1), scale, load(s + kGroup)));
  }
}

template <class Codes>
void dot_groups(const AttentionCall& call, const CodeWork& w, const CodeRows& keys, const CodesAhead& ahead) {
  for (int64_t g = 0; g < keys.n_groups; g += 2) {
    const std::byte* group =
        keys.groups[g] - 4 * call.head_dim_k;  // scales and minimums are before the codes
    begin_group(call, w, group, g * kGroup);
    for (int64_t b = 0; b < w.blocks_k; ++b) {
      ahead.fetch_part<Codes::kBytes>(g, b);
      ahead.fetch_part<Codes::kBytes>(g + 1, b);
      dot_group<Codes>(w, keys, call.n_queries, g, b);
    }
  }
}

// The codes of closed groups of keys.
CodeRows code_rows(const AttentionCall& call, const CacheRows& cache, int64_t first, int64_t n) {
  CodeRows rows;
  rows.n = n;
  rows.n_groups = (n + kGroup - 1) / kGroup;
  rows.row_bytes = static_cast<size_t>(call.head_dim_k / QK * 4 * cache.group_bits);
  for (int64_t g = 0; g < rows.n_groups; ++g) {
    const int64_t position = first + g * kGroup;
    const std::byte* group =
        cache.base + static_cast<size_t>(call.block_table[position / kKiviGroup]) * cache.block_stride;
    rows.groups[g] =
        group + 4 * call.head_dim_k + static_cast<size_t>(position % kKiviGroup) * rows.row_bytes;
  }
  return rows;
}

// Of a call whose blocks are all closed.
void attend_groups(const AttentionCall& call, std::byte* scratch) {
  CodeWork w(call, scratch);
  const Seen seen = find_seen(call, w);
  const struct { int64_t ld_k, ld_v; } ld{call.head_dim_k, call.head_dim_v};
  const CacheRows key_cache = keys_of(call, ld), value_cache = values_of(call, ld);
  const auto dot = call.k_dtype == DType::KIVI4 ? dot_groups<KeyCodes4> : dot_groups<KeyCodes2>;
  const bool wide = call.v_dtype == DType::KIVI4;
  const auto update = wide ? update_codes<ValueCodes4, true> : update_codes<ValueCodes2, true>;
  const size_t block_bytes = wide ? ValueCodes4::kBytes : ValueCodes2::kBytes;
  zero(call.acc, call.n_queries * call.head_dim_v);
  zero(w.sums, call.n_queries * kLanes);
  for (int64_t first = call.kv_begin; first < call.kv_end; first += kPanel) {
    const int64_t left = call.kv_end - first, n = left < kPanel ? left : kPanel, last = first + n - 1;
    if (last < seen.any_from || first > seen.any_to) continue;
    // Closed groups are whole, so scores of all positions are made.
    const int64_t n_whole = (n + kKiviGroup - 1) / kKiviGroup * kKiviGroup;
    const int64_t n_next = lesser(left - n + call.kv_then, kPanel);
    const CodeRows keys = code_rows(call, key_cache, first, n_whole), values(value_cache, first, n_whole),
                   next_keys = code_rows(call, key_cache, first + n, n_next),
                   next_values(value_cache, first + n, n_next);
    for (int64_t g = 0; g < next_keys.n_groups; g += 2)
      fetch_lines(next_keys.groups[g] - 4 * call.head_dim_k, static_cast<size_t>(4 * call.head_dim_k));
    dot(call, w, keys, {next_keys});
    if (call.softcap > 0) cap_scores(w.s, call.n_queries * kPanel, call.softcap);
    if (first < seen.all_from || last > seen.all_to || n < kPanel)
      hide_unseen_scores(w, call.n_queries, first);
    softmax_scores(w, call.n_queries);
    Scales{values, w.blocks_v, block_bytes, w.v_mins, sizeof(fp16_t)}.copy_panel();
    update(w, values, {next_values}, call);
  }
  for (int64_t q = 0; q < call.n_queries; ++q) {
    call.sum[q] = sum_lanes(load(w.sums + q * kLanes));
    call.max[q] = w.max[q];
  }
}

// Adds the result of other positions to that of `call`.
void merge_results(const AttentionCall& call, const AttentionCall& other) {
  for (int64_t q = 0; q < call.n_queries; ++q) {
    const float a = call.max[q], b = other.max[q], most = a > b ? a : b;
    if (b == kNothing) continue;
    alignas(64) float shifted[kLanes] = {a - most, b - most};
    store(shifted, vexp_bounded(load(shifted)));
    const float of_call = a == kNothing ? 0.0f : shifted[0], of_other = shifted[1];
    const Vec x = set1(of_call), y = set1(of_other);
    float* acc = call.acc + q * call.head_dim_v;
    const float* from = other.acc + q * call.head_dim_v;
    for (int64_t d = 0; d < call.head_dim_v; d += kLanes)
      store(acc + d, fma(load(from + d), y, load(acc + d) * x));
    call.sum[q] = call.sum[q] * of_call + other.sum[q] * of_other;
    call.max[q] = most;
  }
}

// The result of the open blocks, before the scratch of either kernel.
struct OpenResult {
  float *acc, *sum, *max;
  size_t bytes;

  OpenResult(const AttentionCall& call, std::byte* scratch) {
    const int64_t n = whole_vecs(call.n_queries);
    acc = reinterpret_cast<float*>(scratch);
    sum = acc + n * call.head_dim_v;
    max = sum + n;
    bytes = static_cast<size_t>(n * (call.head_dim_v + 2)) * sizeof(float);
  }
};

void attend_kivi(const AttentionCall& call, std::byte* scratch) {
  const int64_t end = end_of_closed(call);
  if (end == call.kv_begin) return attend(call, scratch);
  AttentionCall closed = call, open = call;
  closed.kv_end = end;
  const OpenResult result(call, scratch);
  attend_groups(closed, scratch + result.bytes);
  if (end == call.kv_end) return;
  open.kv_begin = end;
  open.acc = result.acc;
  open.sum = result.sum;
  open.max = result.max;
  attend(open, scratch + result.bytes);
  merge_results(call, open);
}

size_t scratch_bytes_with_kivi(const AttentionCall& call) {
  AttentionCall few = call;
  few.n_queries = call.n_queries < kFewQueries ? call.n_queries : kFewQueries;
  const size_t all = scratch_bytes_with_codes(call);
  if (!takes_kivi(few)) return all;
  const size_t codes = CodeWork(few, nullptr).bytes, floats = scratch_bytes(few);
  const size_t kivi = OpenResult(few, nullptr).bytes + (codes < floats ? floats : codes);
  return all < kivi ? kivi : all;
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
