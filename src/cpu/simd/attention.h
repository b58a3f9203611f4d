// Attention of a tile of queries over the block cache, for every vector ISA. Included after the ISA's vec.h,
// by one source of its folder.
//
// Cached rows are taken in panels of kPanel positions, converted to floats once a tile. Two ways from there:
//
// Many queries (prefill). Lanes are queries: with q transposed once a tile, S^T[position, query] = K q^T
// needs no transposed keys (K's elements are broadcast), the softmax over positions is a walk down the lanes,
// and S^T is at once the form that acc += S V broadcasts from. Both products run from registers (product.h).
// The floor is 2 * (hd_k + hd_v) operations a query and position over the peak of the multipliers; 64 queries
// reach 75% of it with heads of 64 columns (163 of 217 GFLOP/s on a core of a Sapphire Rapids at 3.4 GHz),
// 78% with 128, whatever the cache's dtype; 73% with AVX2. The rest is the exponentials (a tenth) and the
// conversion.
//
// Few queries (decode). Lanes are columns of the head for the scores, four positions by up to four queries at
// a time, then positions for the softmax and columns again for the values. The floor is the bytes of the
// cache over bandwidth (a head of 64 columns in F16: 256 bytes, 16 ns at 16 GB/s a core). One query runs at
// the bandwidth that converting loads get; eight, in cache, take 25 ns a position, 37% of the multipliers'
// peak: sums across lanes and conversions cost as much as the products.
#pragma once

#include "cpu/attention_kernels.h"
#include "cpu/simd/cache_rows.h"
#include "cpu/simd/math.h"
#include "cpu/simd/product.h"
#include "cpu/simd/store_rows.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

inline constexpr int64_t kPanel = 64;  // positions
inline constexpr int64_t kMaxQueries = 64;
inline constexpr int64_t kFewQueries = kLanes / 2;  // at most that many go the second way
inline constexpr float kNothing = -__builtin_inff();

TANDEM_INLINE int64_t whole_vecs(int64_t n) {
  return (n + kLanes - 1) / kLanes * kLanes;
}

// The tile's working memory. Leading dimensions are whole vectors; padding is zero.
struct Panels {
  int64_t n_q;  // queries, padded to whole vectors
  int64_t ld_k, ld_v;
  float* q;          // many: [head_dim_k, n_q] scaled; few: [n_queries, ld_k]
  float* k;          // [kPanel, ld_k]
  float* v;          // [kPanel, ld_v]
  float* s;          // many: [kPanel, n_q]; few: [n_queries, kPanel]
  float* acc;        // [n_queries, ld_v]
  float* max;        // [n_q]
  float* sum;        // [n_q]
  float* factor;     // [n_q] what older sums are worth after a new maximum
  int32_t* lowest;   // [n_q] positions that a query sees: lowest .. highest
  int32_t* highest;  // [n_q]
  size_t bytes;

  Panels(const AttentionCall& call, std::byte* scratch)
      : n_q(whole_vecs(call.n_queries)),
        ld_k(whole_vecs(call.head_dim_k)),
        ld_v(whole_vecs(call.head_dim_v)) {
    // Integers, because the size is also wanted without any memory.
    const uintptr_t begin = reinterpret_cast<uintptr_t>(scratch);
    uintptr_t end = begin;
    const auto take = [&](int64_t n) {
      float* piece = reinterpret_cast<float*>(end);
      end += static_cast<size_t>(n + 15) / 16 * 64;
      return piece;
    };
    q = take(ld_k * n_q);
    k = take(kPanel * ld_k);
    v = take(kPanel * ld_v);
    s = take(kPanel * n_q);
    acc = take(n_q * ld_v);
    max = take(n_q);
    sum = take(n_q);
    factor = take(n_q);
    lowest = reinterpret_cast<int32_t*>(take(n_q));
    highest = reinterpret_cast<int32_t*>(take(n_q));
    bytes = end - begin;
  }
};

size_t scratch_bytes(const AttentionCall& call) {
  return Panels(call, nullptr).bytes;
}

// Rows of one of the two pools, by position.
struct CacheRows {
  LoadRows load_rows;
  const std::byte* base;
  size_t block_stride, row_bytes;
  int64_t block_size, head_dim, ld;
  const int32_t* block_table;

  const std::byte* row(int64_t position) const {
    const size_t block = static_cast<size_t>(block_table[position / block_size]);
    return base + block * block_stride + static_cast<size_t>(position % block_size) * row_bytes;
  }

  // Positions [first, first + n) as rows of `to`. Rows lie side by side inside a block.
  void load(int64_t first, int64_t n, float* to) const {
    for (int64_t i = 0; i < n;) {
      const int64_t left = block_size - (first + i) % block_size;
      const int64_t run = left < n - i ? left : n - i;
      const std::byte* from = row(first + i);
      if (ld == head_dim) {
        load_rows(from, to + i * ld, run * head_dim);
      } else {
        for (int64_t j = 0; j < run; ++j, from += row_bytes) load_rows(from, to + (i + j) * ld, head_dim);
      }
      i += run;
    }
  }
};

CacheRows keys_of(const AttentionCall& call, const Panels& p) {
  return {load_rows_fn(call.k_dtype),
          call.k,
          call.k_block_stride,
          cache_row_bytes(call.k_dtype, call.head_dim_k),
          call.block_size,
          call.head_dim_k,
          p.ld_k,
          call.block_table};
}
CacheRows values_of(const AttentionCall& call, const Panels& p) {
  return {load_rows_fn(call.v_dtype),
          call.v,
          call.v_block_stride,
          cache_row_bytes(call.v_dtype, call.head_dim_v),
          call.block_size,
          call.head_dim_v,
          p.ld_v,
          call.block_table};
}

void zero(float* p, int64_t n) {
  memset(p, 0, static_cast<size_t>(n) * sizeof(float));
}

// What each query sees below kv_end, and nothing summed yet. Padding queries see nothing.
struct Seen {
  int32_t all_from, all_to, any_from, any_to;
};  // positions seen by all queries, by any query
Seen prepare(const AttentionCall& call, Panels& p) {
  Seen seen{INT32_MIN, INT32_MAX, INT32_MAX, INT32_MIN};
  for (int64_t i = 0; i < p.n_q; ++i) {
    const bool real = i < call.n_queries;
    const int64_t own = real ? call.positions[i] : -1;
    const int64_t high = own < call.kv_end ? own : call.kv_end - 1;
    const int64_t low = real && call.window > 0 && own - call.window + 1 > 0 ? own - call.window + 1 : 0;
    p.lowest[i] = static_cast<int32_t>(low);
    p.highest[i] = static_cast<int32_t>(high);
    p.max[i] = kNothing;
    p.sum[i] = 0.0f;
    if (!real) continue;
    if (p.lowest[i] > seen.all_from) seen.all_from = p.lowest[i];
    if (p.highest[i] < seen.all_to) seen.all_to = p.highest[i];
    if (p.lowest[i] < seen.any_from) seen.any_from = p.lowest[i];
    if (p.highest[i] > seen.any_to) seen.any_to = p.highest[i];
  }
  zero(p.acc, p.n_q * p.ld_v);
  if (p.ld_k != call.head_dim_k) zero(p.k, kPanel * p.ld_k);
  if (p.ld_v != call.head_dim_v) zero(p.v, kPanel * p.ld_v);
  return seen;
}

// Maxima as they may be subtracted: -inf (nothing seen yet) as 0, so that e^(-inf - max) is 0 and not NaN.
TANDEM_INLINE Vec subtractable(Vec max) {
  return select(equal(max, set1(kNothing)), set1(0.0f), max);
}

TANDEM_INLINE void cap_scores(float* s, int64_t n, float cap) {
  const Vec c = set1(cap), inverse = set1(1.0f / cap);
  for (int64_t i = 0; i < n; i += kLanes) store(s + i, c * vtanh(load(s + i) * inverse));
}

// ---- many queries: lanes are queries

void transpose_queries(const AttentionCall& call, const Panels& p) {
  for (int64_t i = 0; i < p.n_q; ++i) {
    const float* q = i < call.n_queries ? call.q[i] : nullptr;
    for (int64_t d = 0; d < call.head_dim_k; ++d) p.q[d * p.n_q + i] = q ? q[d] * call.scale : 0.0f;
  }
}

void hide_unseen_columns(const Panels& p, int64_t first, int64_t n) {
  for (int64_t c = 0; c < p.n_q; c += kLanes) {
    const IVec low = iload(p.lowest + c), high = iload(p.highest + c);
    for (int64_t i = 0; i < n; ++i) {
      float* s = p.s + i * p.n_q + c;
      const IVec position = iset1(static_cast<int32_t>(first + i));
      store(s, select(between(low, position, high), load(s), set1(kNothing)));
    }
  }
}

// Greatest of n rows at s, and `first`. In four chains: one would wait for every comparison.
TANDEM_INLINE Vec max_of_rows(const float* s, int64_t ld, int64_t n, Vec first) {
  Vec max[4] = {first, first, first, first};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (int64_t j = 0; j < 4; ++j) max[j] = vmax(load(s + (i + j) * ld), max[j]);
  }
  for (; i < n; ++i) max[0] = vmax(load(s + i * ld), max[0]);
  return vmax(vmax(max[0], max[1]), vmax(max[2], max[3]));
}

// Scores become weights; max, sum and factor follow.
void softmax_columns(const Panels& p, int64_t n) {
  for (int64_t c = 0; c < p.n_q; c += kLanes) {
    float* s = p.s + c;
    const Vec old = load(p.max + c), max = max_of_rows(s, p.n_q, n, old);
    const Vec m = subtractable(max), factor = vexp_bounded(old - m);
    Vec sum = load(p.sum + c) * factor;
    for (int64_t i = 0; i < n; ++i) {
      const Vec e = vexp_bounded(load(s + i * p.n_q) - m);
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
    values.load(first, n, p.v);
    for_each_tile(call.n_queries, p.ld_v / kLanes,
                  Update<ColumnsOf>{n, p.s, p.v, p.n_q, p.ld_v, p.factor, p.acc, p.ld_v});
  }
}

// ---- few queries: lanes are columns of the head, then positions

void scale_queries(const AttentionCall& call, const Panels& p) {
  for (int64_t i = 0; i < call.n_queries; ++i) {
    float* q = p.q + i * p.ld_k;
    zero(q, p.ld_k);
    for (int64_t d = 0; d < call.head_dim_k; ++d) q[d] = call.q[i][d] * call.scale;
  }
}

// Scores of kQueries queries (rows of q) and the panel's n positions, n a multiple of 4.
template <int kQueries>
void dot_rows(const Panels& p, const float* q, int64_t n, float* s) {
  for (int64_t i = 0; i < n; i += 4) {
    const float* k = p.k + i * p.ld_k;
    Vec dot[kQueries][4];
    for (auto& row : dot) {
      for (Vec& v : row) v = set1(0.0f);
    }
    for (int64_t d = 0; d < p.ld_k; d += kLanes) {
      Vec x[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) x[j] = load(k + j * p.ld_k + d);
#pragma GCC unroll 4
      for (int r = 0; r < kQueries; ++r) {
        const Vec y = load(q + r * p.ld_k + d);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) dot[r][j] = fma(y, x[j], dot[r][j]);
      }
    }
    for (int r = 0; r < kQueries; ++r) {
      _mm_storeu_ps(s + r * kPanel + i, sum_lanes_4(dot[r][0], dot[r][1], dot[r][2], dot[r][3]));
    }
  }
}

void dot_all(const AttentionCall& call, const Panels& p, int64_t n) {
  constexpr int64_t kStep = kMaxVecs;  // four rows of four accumulators with AVX512, two with AVX2
  for (int64_t i = 0; i < call.n_queries; i += kStep) {
    const float* q = p.q + i * p.ld_k;
    float* s = p.s + i * kPanel;
    switch (call.n_queries - i < kStep ? call.n_queries - i : kStep) {
      case 1:
        dot_rows<1>(p, q, n, s);
        break;
      case 2:
        dot_rows<2>(p, q, n, s);
        break;
      case 3:
        dot_rows<3>(p, q, n, s);
        break;
      default:
        dot_rows<4>(p, q, n, s);
        break;
    }
  }
}

// n is a multiple of kLanes.
void softmax_row(const Panels& p, int64_t i, int64_t first, int64_t n, bool masked) {
  float* s = p.s + i * kPanel;
  Vec max = set1(kNothing);
  const IVec low = iset1(p.lowest[i]), high = iset1(p.highest[i]);
  for (int64_t j = 0; j < n; j += kLanes) {
    Vec x = load(s + j);
    if (masked) {
      x = select(between(low, iota(static_cast<int32_t>(first + j)), high), x, set1(kNothing));
      store(s + j, x);
    }
    max = vmax(x, max);
  }
  const float old = p.max[i], found = max_lanes(max), new_max = found > old ? found : old;
  const float m = new_max == kNothing ? 0.0f : new_max;
  Vec sum = set1(0.0f);
  for (int64_t j = 0; j < n; j += kLanes) {
    const Vec e = vexp_bounded(load(s + j) - set1(m));
    store(s + j, e);
    sum = sum + e;
  }
  float factor[kLanes];
  store(factor, vexp_bounded(set1(old - m)));
  p.factor[i] = factor[0];
  p.sum[i] = p.sum[i] * factor[0] + sum_lanes(sum);
  p.max[i] = new_max;
}

void attend_few(const AttentionCall& call, const Panels& p, const Seen& seen) {
  const CacheRows keys = keys_of(call, p), values = values_of(call, p);
  scale_queries(call, p);
  for (int64_t first = call.kv_begin; first < call.kv_end; first += kPanel) {
    const int64_t n = call.kv_end - first < kPanel ? call.kv_end - first : kPanel, last = first + n - 1;
    if (last < seen.any_from || first > seen.any_to) continue;
    const int64_t padded = whole_vecs(n);  // positions past the end are hidden below
    keys.load(first, n, p.k);
    zero(p.k + n * p.ld_k, (padded - n) * p.ld_k);
    dot_all(call, p, padded);
    if (call.softcap > 0) cap_scores(p.s, call.n_queries * kPanel, call.softcap);
    const bool masked = first < seen.all_from || last > seen.all_to || padded != n;
    for (int64_t i = 0; i < call.n_queries; ++i) softmax_row(p, i, first, padded, masked);
    values.load(first, n, p.v);
    for_each_tile(call.n_queries, p.ld_v / kLanes,
                  Update<RowsOf>{n, p.s, p.v, kPanel, p.ld_v, p.factor, p.acc, p.ld_v});
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
  for (int64_t i = 0; i < call.n_queries; ++i) {
    memcpy(call.acc + i * call.head_dim_v, p.acc + i * p.ld_v,
           static_cast<size_t>(call.head_dim_v) * sizeof(float));
    call.sum[i] = p.sum[i];
    call.max[i] = p.max[i];
  }
}

constexpr AttentionKernels kAttentionKernels{kMaxQueries, scratch_bytes, attend, store_row};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
