// Attention of few queries (decode) over a cache of codes, in integers: what the instruction sets share. Each has its products
// in attention_codes.h (amx: .cpp) of its folder.
#pragma once

#include "cpu/simd/attention_few.h"
#include "cpu/simd/fetch.h"
#include "cpu/simd/store_rows.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

constexpr int64_t kGroup = kLanes;                       // rows of adjacent memory that are read together
constexpr int64_t kGroups = kPanel / kGroup;             // of a panel
#ifdef __AMX_INT8__
constexpr int64_t kCodeQueries = kLanes == 16 ? 16 : 8;  // at most
#else
constexpr int64_t kCodeQueries = 8;
#endif
static_assert(kCodeQueries <= kLanes);  // their maxima are a vector
constexpr int kQueriesAtOnce = 4;                        // in registers
constexpr int64_t kQueryBytes = 352;                     // of a block's codes, with AVX2
constexpr float kMaxCode = 32512.0f;                     // 127 * 256: both bytes fit

// Queries that have room: tiles (amx/attention_codes.cpp) take eight.
constexpr int64_t padded_queries(int64_t n) {
  return kLanes == 8 || n <= 4 ? n : (n + 7) / 8 * 8;
}
// Of n queries' codes of a block, and, of a tile's eight queries, as many scales as a vector has.
constexpr int64_t query_bytes(int64_t n) {
  return kLanes == 8 ? n * kQueryBytes : padded_queries(n) * 72;
}

// The working memory.
struct CodeWork {
  int64_t n_q;  // queries, padded to a vector
  int64_t blocks_k, blocks_v;
  std::byte* q;      // blocks_k times query_bytes(n_queries), as the instruction set's products take them
  float* q_scale;    // [n_queries, blocks_k] with AVX2 and tiles these two are in q
  int32_t* q_start;  // [n_queries, blocks_k] what takes off the bias
  fp16_t* k_scales;  // [blocks_k, kPanel]
  fp16_t* k_mins;    // likewise, of types that have minimums
  fp16_t* v_scales;  // [blocks_v, kPanel] not with AVX2
  fp16_t* v_mins;    // likewise, of KIVI types
  float* s;          // [n_queries, kPanel] scores, then weights; more with tiles
  float* sums;       // [n_queries, kLanes]
  float *max, *sum, *factor;  // [n_q]
  int32_t *lowest, *highest;  // [n_q] positions that a query sees
  size_t bytes;

  CodeWork() = default;
  CodeWork(const AttentionCall& call, std::byte* scratch)
      : n_q(whole_vecs(call.n_queries)), blocks_k(call.head_dim_k / QK), blocks_v(call.head_dim_v / QK) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(scratch);
    uintptr_t end = begin;
    const auto take = [&](int64_t n_bytes) {
      const uintptr_t piece = end;
      end += static_cast<size_t>(n_bytes + 63) / 64 * 64;
      return piece;
    };
    const int64_t n = call.n_queries;
    q = reinterpret_cast<std::byte*>(take(blocks_k * query_bytes(n)));
    q_scale = reinterpret_cast<float*>(take(n * blocks_k * 4));
    q_start = reinterpret_cast<int32_t*>(take(n * blocks_k * 4));
    k_scales = reinterpret_cast<fp16_t*>(take(blocks_k * kPanel * 2));
    const bool mins = call.k_dtype == DType::Q4_1 || call.k_dtype == DType::Q5_1;
    k_mins = reinterpret_cast<fp16_t*>(take(mins ? blocks_k * kPanel * 2 : 0));
    v_scales = reinterpret_cast<fp16_t*>(take(blocks_v * kPanel * 2));
    v_mins = reinterpret_cast<fp16_t*>(take(is_kivi(call.v_dtype) ? blocks_v * kPanel * 2 : 0));
    s = reinterpret_cast<float*>(take(padded_queries(n) * kPanel * 4));
    sums = reinterpret_cast<float*>(take(n * kLanes * 4));
    max = reinterpret_cast<float*>(take(n_q * 4));
    sum = reinterpret_cast<float*>(take(n_q * 4));
    factor = reinterpret_cast<float*>(take(n_q * 4));
    lowest = reinterpret_cast<int32_t*>(take(n_q * 4));
    highest = reinterpret_cast<int32_t*>(take(n_q * 4));
    bytes = end - begin;
  }
};

// A panel's rows of one of the two pools: groups of adjacent ones.
struct CodeRows {
  const std::byte* groups[kGroups];
  int64_t n, n_groups;
  size_t row_bytes;

  CodeRows() = default;
  CodeRows(const CacheRows& cache, int64_t first, int64_t n_rows)
      : n(n_rows), n_groups((n + kGroup - 1) / kGroup), row_bytes(cache.row_bytes) {
    for (int64_t g = 0; g < n_groups;) {  // a division for a block, not a group
      const int64_t position = first + g * kGroup;
      const int64_t in_block = (cache.block_size - position % cache.block_size) / kGroup;
      const std::byte* row = cache.row(position);
      for (int64_t end = lesser(n_groups, g + in_block); g < end; ++g, row += kGroup * row_bytes)
        groups[g] = row;
    }
  }
};

// What is fetched while a panel's rows are read: `streams`, if they are there, or those of the next panel.
struct CodesAhead {
  CodeRows rows;
  Streams* streams = nullptr;

  // With the b-th part of the panel's group, as large as a block of each row. Blocks have kBytes.
  template <int kBytes>
  TANDEM_INLINE void fetch_part(int64_t group, int64_t b) const {
    constexpr int kPart = static_cast<int>(kGroup) * kBytes;
    if (group >= kGroups) return;
    if (streams) return streams->fetch<kPart>();
    if (group >= rows.n_groups) return;
    const std::byte* from = rows.groups[group] + b * kPart;
    if constexpr (kLanes == 8) {
      fetch_lines<kPart>(from);
    } else {  // unrolled, eight queries of Q8_0 took 5% longer
      fetch_lines(from, kPart);
    }
  }
};

// Where a panel's scales of one of the two pools are copied to.
struct Scales {
  const CodeRows& rows;
  int64_t n_blocks;
  size_t block_bytes;
  fp16_t* to;     // [n_blocks, kPanel]
  size_t at = 0;  // bytes behind a block's first

  // Those of a group, if there is one. Copies that are read at once wait for each other, and many in a row for the stores.
  TANDEM_INLINE void copy(int64_t group) const {
    if (group >= rows.n_groups) return;
    for (int64_t b = 0; b < n_blocks; ++b) copy_block(group, b);
  }
  // Those of a group that is there, of one block.
  TANDEM_INLINE void copy_block(int64_t group, int64_t b) const {
    const size_t step = rows.row_bytes;
    const std::byte* row = rows.groups[group] + at + static_cast<size_t>(b) * block_bytes;
    fp16_t* scales = to + b * kPanel + group * kGroup;
#pragma GCC unroll 4
    for (int64_t i = 0; i < kGroup; i += 4, row += 4 * step) {
      memcpy(scales + i, row, sizeof(fp16_t));
      memcpy(scales + i + 1, row + step, sizeof(fp16_t));
      memcpy(scales + i + 2, row + 2 * step, sizeof(fp16_t));
      memcpy(scales + i + 3, row + 3 * step, sizeof(fp16_t));
    }
  }
  // Those of all groups, and zeros for rows that are not there.
  void copy_panel() const {
    for (int64_t g = 0; g < rows.n_groups; ++g) copy(g);
    for (int64_t b = 0; b < n_blocks && rows.n < kPanel; ++b)
      memset(to + b * kPanel + rows.n, 0, static_cast<size_t>(kPanel - rows.n) * sizeof(fp16_t));
  }
};

// Hides the scores of positions that a query does not see.
void hide_unseen_scores(const CodeWork& w, int64_t n_queries, int64_t first) {
  for (int64_t q = 0; q < n_queries; ++q) {
    const IVec low = iset1(w.lowest[q]), high = iset1(w.highest[q]);
    for (int64_t i = 0; i < kPanel; i += kLanes) {
      float* s = w.s + q * kPanel + i;
      store(s, select(between(low, iota(static_cast<int32_t>(first + i)), high), load(s), set1(kNothing)));
    }
  }
}

// Turns scores into weights and updates max, sums and factor.
void softmax_scores(const CodeWork& w, int64_t n_queries) {
  alignas(64) float m[kLanes], panel_max[kLanes];
  store(panel_max, set1(kNothing));
  for (int64_t q = 0; q < n_queries; ++q)
    panel_max[q] = max_lanes(max_of_rows(w.s + q * kPanel, kLanes, kPanel / kLanes, set1(kNothing)));
  const Vec old = load(w.max), max = vmax(load(panel_max), old), least = subtractable(max);
  store(m, least);
  store(w.max, max);
  store(w.factor, vexp_at_most_1(old - least));
  for (int64_t q = 0; q < n_queries; ++q) {
    Vec sum = load(w.sums + q * kLanes) * set1(w.factor[q]);
    for (int64_t i = 0; i < kPanel; i += kLanes) {
      float* s = w.s + q * kPanel + i;
      const Vec e = vexp_at_most_1(load(s) - set1(m[q]));
      store(s, e);
      sum = sum + e;
    }
    store(w.sums + q * kLanes, sum);
  }
}

// The sum of a query's weights of a panel times the minimums of block b.
TANDEM_INLINE float weighted_mins(const CodeWork& w, int64_t q, int64_t b) {
  Vec sum = set1(0.0f);
#pragma GCC unroll 4
  for (int64_t i = 0; i < kPanel; i += kLanes)
    sum = fma(load(w.s + q * kPanel + i), load_f16(w.v_mins + b * kPanel + i), sum);
  return sum_lanes(sum);
}

struct CodeFns {
  int bias = 0;
  size_t block_bytes = 0;
  void (*dot)(const CodeWork&, const CodeRows& keys, const CodesAhead&, int64_t n_queries) = nullptr;
  void (*update)(const CodeWork&, const CodeRows& values, const CodesAhead&, const AttentionCall&) = nullptr;
};
// Of each instruction set: nothing for a dtype that it reads otherwise.
CodeFns code_fns(DType dtype);
// Turns the queries times the scale into codes of 16 bits.
void encode_queries(const AttentionCall& call, const CodeWork& w, const CodeFns& keys);

bool takes_codes(const AttentionCall& call) {
  const auto coded = [](DType dtype) { return code_fns(dtype).dot != nullptr; };
  return coded(call.k_dtype) && (call.values_in_keys || coded(call.v_dtype)) &&
         call.n_queries <= kCodeQueries && call.block_size % kGroup == 0 && call.head_dim_v % QK == 0;
}

// A call under way.
struct Coded {
  const AttentionCall* call;
  CodeWork w;
  Seen seen;
  CodeFns k_fns, v_fns;
  CacheRows keys, values;

  Coded() = default;
  Coded(const AttentionCall& c, std::byte* scratch)
      : call(&c),
        w(c, scratch),
        seen(find_seen(c, w)),
        k_fns(code_fns(c.k_dtype)),
        v_fns(code_fns(c.values_in_keys ? c.k_dtype : c.v_dtype)),
        keys(keys_of(c, Columns{c.head_dim_k, c.head_dim_v})),
        values(c.values_in_keys ? keys : values_of(c, Columns{c.head_dim_k, c.head_dim_v})) {
    zero(c.acc, c.n_queries * c.head_dim_v);
    zero(w.sums, c.n_queries * kLanes);
    encode_queries(c, w, k_fns);
  }

  bool sees(int64_t first, int64_t n) const { return first + n > seen.any_from && first <= seen.any_to; }
  void dot(int64_t first, int64_t n, const CodesAhead& ahead) const {
    k_fns.dot(w, CodeRows(keys, first, n), ahead, call->n_queries);
  }
  // Turns a panel's scores into weights.
  void weigh(int64_t first, int64_t n) const {
    if (call->softcap > 0) cap_scores(w.s, call->n_queries * kPanel, call->softcap);
    if (first < seen.all_from || first + n - 1 > seen.all_to || n < kPanel)
      hide_unseen_scores(w, call->n_queries, first);
    softmax_scores(w, call->n_queries);
  }
  void update(int64_t first, int64_t n, const CodesAhead& ahead) const {
    v_fns.update(w, CodeRows(values, first, n), ahead, *call);
  }
  void finish() const {
    for (int64_t q = 0; q < call->n_queries; ++q) {
      call->sum[q] = sum_lanes(load(w.sums + q * kLanes));
      call->max[q] = w.max[q];
    }
  }

 private:
  struct Columns { int64_t ld_k, ld_v; };
};

void attend_codes(const AttentionCall& call, std::byte* scratch) {
  const Coded coded(call, scratch);
  for (int64_t first = call.kv_begin; first < call.kv_end; first += kPanel) {
    const int64_t n = lesser(call.kv_end - first, kPanel), then = first + n;
    if (!coded.sees(first, n)) continue;
    const int64_t n_then = lesser(call.kv_end + call.kv_then - then, kPanel);
    coded.dot(first, n, {CodeRows(coded.keys, then, n_then)});
    coded.weigh(first, n);
    coded.update(first, n, {CodeRows(coded.values, then, call.values_in_keys ? 0 : n_then)});
  }
  coded.finish();
}

[[maybe_unused]] size_t scratch_bytes_with_codes(const AttentionCall& call) {
  AttentionCall few = call;
  few.n_queries = lesser(call.n_queries, kCodeQueries);
  const size_t floats = scratch_bytes(call), codes = takes_codes(few) ? CodeWork(few, nullptr).bytes : 0;
  return floats < codes ? codes : floats;
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
