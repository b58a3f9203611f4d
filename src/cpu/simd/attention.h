// Attention of a tile of queries over the block cache, for every vector ISA. One source of each ISA's folder
// includes it, after vec.h.
//
// Many queries (prefill). Cached rows are taken in panels of kPanel positions, converted to floats once a
// tile. Lanes are queries: with q transposed once a tile, S^T[position, query] = K q^T needs no transposed
// keys (K's elements are broadcast), the softmax over positions is a walk down the lanes, and S^T is at once
// the form that acc += S V broadcasts from. Both products run from registers (product.h). The floor is 2 *
// (hd_k + hd_v) operations a query and position over the peak of the multipliers; 64 queries reach 75% of it
// with heads of 64 columns (163 of 217 GFLOP/s on a core of a Sapphire Rapids at 3.4 GHz), 78% with 128,
// whatever the cache's dtype; 73% with AVX2. The rest is the exponentials (a tenth) and the conversion.
//
// Few queries (decode): see attention_few.h, and of all heads of a long cache attention_heads.h.
#pragma once

#include "cpu/simd/attention_few.h"
#include "cpu/simd/attention_heads.h"
#include "cpu/simd/product.h"
#include "cpu/simd/store_rows.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// ---- many queries: lanes are queries

void transpose_queries(const AttentionCall& call, const Panels& p) {
  for (int64_t i = 0; i < p.n_q; ++i) {
    const float* q = i < call.n_queries ? call.q[i] : nullptr;
    for (int64_t d = 0; d < call.head_dim_k; ++d) p.q[d * p.n_q + i] = q ? q[d] * call.scale : 0.0f;
  }
}

// Turns scores into weights and updates max, sum and factor.
void softmax_columns(const Panels& p, int64_t n) {
  for (int64_t c = 0; c < p.n_q; c += kLanes) {
    float* s = p.s + c;
    const Vec old = load(p.max + c), max = max_of_rows(s, p.n_q, n, old);
    const Vec m = subtractable(max), factor = vexp_at_most_1(old - m);
    Vec sum = load(p.sum + c) * factor;
    for (int64_t i = 0; i < n; ++i) {
      const Vec e = vexp_at_most_1(load(s + i * p.n_q) - m);
      store(s + i * p.n_q, e);
      sum = sum + e;
    }
    store(p.max + c, max);
    store(p.sum + c, sum);
    store(p.factor + c, factor);
  }
}

void attend_many(const AttentionCall& call, const Panels& p, const Seen& seen) {
  const CacheRows keys = keys_of(call, p), values = values_of(call, p);
  transpose_queries(call, p);
  for (int64_t first = call.kv_begin; first < call.kv_end; first += kPanel) {
    const int64_t n = call.kv_end - first < kPanel ? call.kv_end - first : kPanel, last = first + n - 1;
    if (last < seen.any_from || first > seen.any_to) continue;
    keys.load(first, n, p.k);
    for_each_tile(n, p.n_q / kLanes, Product<RowsOf>{call.head_dim_k, p.k, p.q, p.ld_k, p.n_q, p.s, p.n_q});
    if (call.softcap > 0) cap_scores(p.s, n * p.n_q, call.softcap);
    if (first < seen.all_from || last > seen.all_to) hide_unseen_columns(p, first, n);
    softmax_columns(p, n);
    if (!call.values_in_keys) values.load(first, n, p.v);
    const float* v = call.values_in_keys ? p.k : p.v;
    const int64_t ld = call.values_in_keys ? p.ld_k : p.ld_v;
    for_each_tile(call.n_queries, p.ld_v / kLanes,
                  Update<ColumnsOf>{n, p.s, v, p.n_q, ld, p.factor, p.acc, p.ld_v});
  }
}

void attend(const AttentionCall& call, std::byte* scratch) {
  Panels p(call, scratch);
  const Seen seen = prepare(call, p);
  if (call.n_queries <= kFewQueries) {
    attend_few(call, p, seen);
  } else {
    attend_many(call, p, seen);
  }
  return_results(call, p);
}

constexpr AttentionKernels kAttentionKernels{kMaxQueries, scratch_bytes, attend,
                                             store_row,   takes_heads,   attend_heads};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
