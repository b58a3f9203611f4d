// Shared by both attention kernels (see attention.h): the working memory of a tile, the addresses of cached
// rows, and the positions that the tile's queries see.
#pragma once

#include "cpu/attention_kernels.h"
#include "cpu/simd/cache_rows.h"
#include "cpu/simd/math.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

inline constexpr int64_t kPanel = 64;  // positions
inline constexpr int64_t kMaxQueries = 64;
inline constexpr float kNothing = -__builtin_inff();

TANDEM_INLINE int64_t lesser(int64_t a, int64_t b) {
  return a < b ? a : b;
}
TANDEM_INLINE int64_t whole_vecs(int64_t n) {
  return (n + kLanes - 1) / kLanes * kLanes;
}

// The tile's working memory. Leading dimensions are whole vectors; padding is zero.
struct Panels {
  int64_t n_q;  // queries, padded to whole vectors
  int64_t ld_k, ld_v;
  float* q;          // many: [head_dim_k, n_q] scaled; few: [n_queries, ld_k]
  float* k;          // [kPanel, ld_k]
  float* v;          // [kPanel, ld_v]; nothing if values are in the keys
  float* s;          // many: [kPanel, n_q]; few: [n_queries, kPanel]
  float* acc;        // [n_queries, ld_v]
  float* max;        // [n_q]
  float* sum;        // [n_q]
  float* factor;     // [n_q] how to scale older sums after a new maximum
  int32_t* lowest;   // [n_q] positions that a query sees: lowest .. highest
  int32_t* highest;  // [n_q]
  size_t bytes;

  Panels() = default;
  Panels(const AttentionCall& call, std::byte* scratch)
      : n_q(whole_vecs(call.n_queries)),
        ld_k(whole_vecs(call.head_dim_k)),
        ld_v(whole_vecs(call.head_dim_v)) {
    // Integers, because the size is also computed without memory.
    const uintptr_t begin = reinterpret_cast<uintptr_t>(scratch);
    uintptr_t end = begin;
    const auto take = [&](int64_t n) {
      float* piece = reinterpret_cast<float*>(end);
      end += static_cast<size_t>(n + 15) / 16 * 64;
      return piece;
    };
    q = take(ld_k * n_q);
    k = take(kPanel * ld_k);
    v = take(call.values_in_keys ? 0 : kPanel * ld_v);
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

[[maybe_unused]] size_t scratch_bytes(const AttentionCall& call) {
  return Panels(call, nullptr).bytes;
}

// Rows of one of the two pools, by position.
struct CacheRows {
  LoadRows load_rows;
  const std::byte* base;
  size_t block_stride, row_bytes;
  int64_t block_size, head_dim, ld;
  const int32_t* block_table;
  // Of grouped dtypes; 0 bits: of others.
  int group_bits;
  bool are_keys;
  const int32_t* open_of;
  const std::byte* open_base;
  size_t open_stride;
  int32_t n_blocks;  // at `base`; the others
  const std::byte* spilled;

  // Where the row is; of grouped dtypes, an address in its block, if that is closed.
  const std::byte* row(int64_t position) const {
    const int32_t block = block_table[position / block_size];
    const std::byte* rows = block < n_blocks ? base + static_cast<size_t>(block) * block_stride
                                             : spilled + static_cast<size_t>(block - n_blocks) * block_stride;
    return rows + static_cast<size_t>(position % block_size) * row_bytes;
  }

  // Calls use(rows, i, n) for each run of adjacent rows among positions [first, first + n): n rows from the
  // i-th on.
  template <class Use>
  TANDEM_INLINE void for_each_run(int64_t first, int64_t n, const Use& use) const {
    for (int64_t i = 0; i < n;) {
      const int64_t left = block_size - (first + i) % block_size;
      const int64_t run = left < n - i ? left : n - i;
      use(row(first + i), i, run);
      i += run;
    }
  }

  // Loads positions [first, first + n) as rows of `to`.
  void load(int64_t first, int64_t n, float* to) const {
    for_each_run(first, n, [&](const std::byte* from, int64_t i, int64_t run) {
      if (group_bits != 0 && load_grouped(first + i, run, to + i * ld)) return;
      if (ld == head_dim) return load_rows(from, to + i * ld, run * head_dim);
      for (int64_t j = 0; j < run; ++j, from += row_bytes) load_rows(from, to + (i + j) * ld, head_dim);
    });
  }

  // Loads rows of one block, if they are open or keys.
  bool load_grouped(int64_t position, int64_t n, float* to) const {
    const int32_t block = block_table[position / block_size];
    const int64_t offset = position % block_size;
    if (open_of[block] >= 0) {
      const auto* from =
          reinterpret_cast<const fp16_t*>(open_base + static_cast<size_t>(open_of[block]) * open_stride) +
          offset * head_dim;
      for (int64_t i = 0; i < n; ++i)
        load_f16_rows(reinterpret_cast<const std::byte*>(from + i * head_dim), to + i * ld, head_dim);
      return true;
    }
    if (!are_keys) return false;
    const std::byte* group = base + static_cast<size_t>(block) * block_stride;
    if (group_bits == 4) {
      load_key_group<4>(group, offset, n, to, ld, head_dim);
    } else {
      load_key_group<2>(group, offset, n, to, ld, head_dim);
    }
    return true;
  }
};

template <class P>
CacheRows keys_of(const AttentionCall& call, const P& p) {
  return {load_rows_fn(call.k_dtype),
          call.k,
          call.k_block_stride,
          cache_row_bytes(call.k_dtype, call.head_dim_k),
          call.block_size,
          call.head_dim_k,
          p.ld_k,
          call.block_table,
          is_kivi(call.k_dtype) ? kivi_bits(call.k_dtype) : 0,
          true,
          call.open_of,
          call.k_open,
          call.k_open_stride,
          call.n_blocks,
          call.k_spilled};
}
template <class P>
CacheRows values_of(const AttentionCall& call, const P& p) {
  return {load_rows_fn(call.v_dtype),
          call.v,
          call.v_block_stride,
          cache_row_bytes(call.v_dtype, call.head_dim_v),
          call.block_size,
          call.head_dim_v,
          p.ld_v,
          call.block_table,
          is_kivi(call.v_dtype) ? kivi_bits(call.v_dtype) : 0,
          false,
          call.open_of,
          call.v_open,
          call.v_open_stride,
          call.n_blocks,
          call.v_spilled};
}

// Rows used next, fetched while others are multiplied: those of a head in a block are too few for the hardware to see that
// they go on.
struct RowsAhead {
  const CacheRows& cache;
  int64_t first, n;

  // The part of the rows of steps [from, to) of `total`.
  TANDEM_INLINE void fetch(int64_t from, int64_t to, int64_t total) const {
    for (int64_t i = n * from / total; i < n * to / total; ++i) {
      const char* row = reinterpret_cast<const char*>(cache.row(first + i));
      for (size_t at = 0; at < cache.row_bytes; at += 64) _mm_prefetch(row + at, _MM_HINT_T1);
    }
  }
};

// The most that is fetched before it is read: of the L2 of older cores, 256 KiB, this and what is read meanwhile are less than all.
inline constexpr size_t kMaxStretch = 96 << 10;
// How many of n heads to take at a time, of which n_rows rows each are neighbours and fetched together: as many in each turn.
TANDEM_INLINE int64_t heads_of_stretch(const AttentionCall& call, int64_t n_rows, int64_t n) {
  const size_t k = cache_row_bytes(call.k_dtype, call.head_dim_k), v = cache_row_bytes(call.v_dtype, call.head_dim_v);
  const auto fit = static_cast<int64_t>(kMaxStretch / (static_cast<size_t>(n_rows) * (k < v ? v : k)));
  const int64_t most = fit < 1 ? 1 : lesser(fit, kHeadsAtOnce);
  const int64_t turns = (n + most - 1) / most;
  return (n + turns - 1) / turns;
}

void zero(float* p, int64_t n) {
  memset(p, 0, static_cast<size_t>(n) * sizeof(float));
}

// Finds the positions below kv_end that each query sees, and clears the sums. Padding queries see nothing.
struct Seen {
  int32_t all_from, all_to, any_from, any_to;
};  // positions seen by all queries, by any query
template <class P>
Seen find_seen(const AttentionCall& call, P& p) {
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
  return seen;
}

[[maybe_unused]] Seen prepare(const AttentionCall& call, Panels& p) {
  const Seen seen = find_seen(call, p);
  zero(p.acc, p.n_q * p.ld_v);
  if (p.ld_k != call.head_dim_k) zero(p.k, kPanel * p.ld_k);
  if (p.ld_v != call.head_dim_v && !call.values_in_keys) zero(p.v, kPanel * p.ld_v);
  return seen;
}

[[maybe_unused]] void return_results(const AttentionCall& call, const Panels& p) {
  for (int64_t i = 0; i < call.n_queries; ++i) {
    memcpy(call.acc + i * call.head_dim_v, p.acc + i * p.ld_v,
           static_cast<size_t>(call.head_dim_v) * sizeof(float));
    call.sum[i] = p.sum[i];
    call.max[i] = p.max[i];
  }
}

// Maxima that are safe to subtract: -inf (nothing seen yet) becomes 0, so e^(-inf - max) is 0 and not NaN.
TANDEM_INLINE Vec subtractable(Vec max) {
  return select(equal(max, set1(kNothing)), set1(0.0f), max);
}

// Of scores whose lanes are queries, s[position, query]: hides those of positions first .. first + n that a query does
// not see.
template <class P>
void hide_unseen_columns(const P& p, int64_t first, int64_t n) {
  for (int64_t c = 0; c < p.n_q; c += kLanes) {
    const IVec low = iload(p.lowest + c), high = iload(p.highest + c);
    for (int64_t i = 0; i < n; ++i) {
      float* s = p.s + i * p.n_q + c;
      const IVec position = iset1(static_cast<int32_t>(first + i));
      store(s, select(between(low, position, high), load(s), set1(kNothing)));
    }
  }
}

// Maximum of n rows at s, and `first`. Four chains, because one would wait for every comparison.
TANDEM_INLINE Vec max_of_rows(const float* s, int64_t ld, int64_t n, Vec first) {
  Vec max[4] = {first, first, first, first};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (int64_t j = 0; j < 4; ++j) max[j] = vmax(load(s + (i + j) * ld), max[j]);
  }
  for (; i < n; ++i) max[0] = vmax(load(s + i * ld), max[0]);
  return vmax(vmax(max[0], max[1]), vmax(max[2], max[3]));
}

TANDEM_INLINE void cap_scores(float* s, int64_t n, float cap) {
  const Vec c = set1(cap), inverse = set1(1.0f / cap);
  for (int64_t i = 0; i < n; i += kLanes) store(s + i, c * vtanh(load(s + i) * inverse));
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
