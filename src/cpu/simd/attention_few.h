// Attention of few queries (decode): all queries against one cached row at a time.
//
// Queries are kStride apart, their number rounded up to a power of two, so a vector has kLanes / kStride
// positions of each. For the scores lanes are columns of the head: kLanes products of a query and a position
// run at once, and one transposed sum makes them a vector of scores, s[position, query]. The softmax is
// elementwise on those, and the values take their weights one by one.
//
// Rows of floats, half floats and BF16 are converted where they are used; those of other types (most have a kernel of their
// own, simd/attention_codes.h, and with VNNI so have the KIVI types, avx512/attention_kivi.h), of heads
// that are no whole vectors and of tiny blocks are converted to a panel first. While keys are multiplied those of the next
// panel are fetched, and with the values the next values: the rows of a head in a block are too few for the hardware to see
// that they go on. A panel has so few rows that two of keys and two of values are in an L1 of 48 KiB: on a Zen 5 fetching into the L2
// alone took a third longer, a panel of twice the rows up to a tenth. A call's last panel fetches the first of the next call.
// One query takes its rows one after the other, as they are in memory.
//
// The floors are the bytes of the cache over bandwidth and 2 * (hd_k + hd_v) operations a query and position
// over the peak of the multipliers. On two cores of a Sapphire Rapids one query of 64 columns and half floats
// reads what the memory gives (40 GB/s), 53 GB/s from the L3; four of 128 columns 38 GB/s; eight of 64
// columns take 26 ns a position and core, 36% of the multipliers' peak: half the time of the scores is the
// transposed sums, and loads of the queries compete with those of the rows. On a core of a Zen 5 that reads 30 GB/s with plain
// loads, heads of 128 columns: one query 24 GB/s, four 28, eight 19; from the L3 62, 38 and 20.
#pragma once

#include "cpu/simd/attention_panels.h"
#include "cpu/simd/fetch.h"
#include "cpu/simd/unroll.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

inline constexpr int64_t kFewQueries = kLanes / 2;

TANDEM_INLINE constexpr int stride_of(int n_queries) {
  return n_queries <= 2 ? n_queries : n_queries <= 4 ? 4 : 8;
}

// Loads a vector of a row's columns, from the d-th on.
struct RowsF32 {
  using Value = float;
  TANDEM_INLINE static Vec at(const std::byte* row, int64_t d) {
    return load(reinterpret_cast<const float*>(row) + d);
  }
};
struct RowsF16 {
  using Value = fp16_t;
  TANDEM_INLINE static Vec at(const std::byte* row, int64_t d) {
    return load_f16(reinterpret_cast<const fp16_t*>(row) + d);
  }
};
struct RowsBF16 {
  using Value = bf16_t;
  TANDEM_INLINE static Vec at(const std::byte* row, int64_t d) {
    return load_bf16(reinterpret_cast<const bf16_t*>(row) + d);
  }
};

// Adjacent rows of a panel.
struct Run {
  const std::byte* rows;
  int64_t n;
};
// A panel's rows of one of the two pools.
struct PanelRows {
  Run runs[kPanel];
  int64_t n_runs = 0;
  size_t row_bytes = 0;

  // Finds their addresses in the cache.
  void find(const CacheRows& cache, int64_t first, int64_t n) {
    n_runs = 0;
    row_bytes = cache.row_bytes;
    cache.for_each_run(first, n, [&](const std::byte* rows, int64_t, int64_t run) {
      runs[n_runs++] = {rows, run};
    });
  }
  // Converts the rows, padded with zeros to whole vectors, and fetches n_next behind them.
  void convert(const CacheRows& cache, int64_t first, int64_t n, int64_t n_next, float* to) {
    for (int64_t i = 0; i < n; i += kLanes) {
      const int64_t end = i + kLanes < n ? i + kLanes : n;
      RowsAhead{cache, first + n, n_next}.fetch(i, end, n);
      cache.load(first + i, end - i, to + i * cache.ld);
    }
    zero(to + n * cache.ld, (whole_vecs(n) - n) * cache.ld);
    row_bytes = static_cast<size_t>(cache.ld) * sizeof(float);
    runs[0] = {reinterpret_cast<const std::byte*>(to), n};
    n_runs = 1;
  }
  // Returns row i of run r, or `other` if there is none (harmless to fetch).
  TANDEM_INLINE const std::byte* row_or(int64_t r, int64_t i, const std::byte* other) const {
    return r < n_runs && i < runs[r].n ? runs[r].rows + static_cast<size_t>(i) * row_bytes : other;
  }
};

// What is fetched while a panel's rows are read: the next panel's rows, each with the row in its place.
struct Ahead {
  PanelRows rows;

  // With kVecs vectors of a row's columns, from the d-th on. `row`: in that row's place.
  template <class Rows, int kVecs>
  TANDEM_INLINE void fetch_columns(const std::byte* row, int64_t d) const {
    constexpr int kBytes = kLanes * static_cast<int>(sizeof(typename Rows::Value));
    fetch_lines<kVecs * kBytes>(row + d * static_cast<int64_t>(sizeof(typename Rows::Value)));
  }
};

void scale_queries(const AttentionCall& call, const Panels& p) {
  for (int64_t i = 0; i < call.n_queries; ++i) {
    float* q = p.q + i * p.ld_k;
    zero(q, p.ld_k);
    for (int64_t d = 0; d < call.head_dim_k; ++d) q[d] = call.q[i][d] * call.scale;
  }
}

// The products of one query's columns with a row's, summed lane by lane. Fetches the row at `then` meanwhile.
template <class Rows>
TANDEM_INLINE Vec dot_row(const float* q, const std::byte* row, const Ahead& ahead, const std::byte* then,
                          int64_t n_cols) {
  Vec sums[4] = {set1(0.0f), set1(0.0f), set1(0.0f), set1(0.0f)};
  int64_t d = 0;
  for (; d + 4 * kLanes <= n_cols; d += 4 * kLanes) {
    ahead.fetch_columns<Rows, 4>(then, d);
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v)
      sums[v] = fma(load(q + d + v * kLanes), Rows::at(row, d + v * kLanes), sums[v]);
  }
  for (; d < n_cols; d += kLanes) {
    ahead.fetch_columns<Rows, 1>(then, d);
    sums[0] = fma(load(q + d), Rows::at(row, d), sums[0]);
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}
// Scores of one query against kLanes adjacent rows, in the order of memory: in a loop, because a load that comes back only after
// kLanes rows lets the hardware fetch other lines than the next ones.
template <class Rows>
TANDEM_INLINE Vec dot_rows(const float* q, const std::byte* row, size_t row_bytes, const Ahead& ahead,
                           const std::byte* then, int64_t n_cols) {
  alignas(64) float parts[kLanes * kLanes];
#pragma GCC unroll 1
  for (int64_t j = 0; j < kLanes; ++j, row += row_bytes, then += ahead.rows.row_bytes)
    store(parts + j * kLanes, dot_row<Rows>(q, row, ahead, then, n_cols));
  Vec dot[kLanes];
#pragma GCC unroll 16
  for (int j = 0; j < kLanes; ++j) dot[j] = load(parts + j * kLanes);
  return sum_each(dot);
}

// Scores of all queries against a panel's rows, and against the padding of the last rows' vectors.
template <class Rows, int kQueries>
void dot_panel(const Panels& p, const PanelRows& keys, const Ahead& ahead) {
  constexpr int kStride = stride_of(kQueries), kPositions = kLanes / kStride;
  const size_t step_bytes =
      static_cast<size_t>(kPositions) * ahead.rows.row_bytes / static_cast<size_t>(p.ld_k / kLanes);
  float* s = p.s;
  for (int64_t r = 0; r < keys.n_runs; ++r) {
    const std::byte* row = keys.runs[r].rows;
    for (int64_t i = 0; i < keys.runs[r].n; i += kPositions, s += kLanes) {
      const std::byte* then = ahead.rows.row_or(r, i, row);
      if constexpr (kQueries == 1) {
        store(s, dot_rows<Rows>(p.q, row, keys.row_bytes, ahead, then, p.ld_k));
        row += kPositions * keys.row_bytes;
        continue;
      }
      Vec dot[kLanes];
#pragma GCC unroll 16
      for (Vec& v : dot) v = set1(0.0f);
      for (int64_t d = 0; d < p.ld_k; d += kLanes) {
        Vec y[kQueries];
#pragma GCC unroll 8
        for (int q = 0; q < kQueries; ++q) y[q] = load(p.q + q * p.ld_k + d);
        fetch_lines(then, step_bytes);  // a little at a time: the core can wait for few lines only
        then += step_bytes;
#pragma GCC unroll 16
        for (int j = 0; j < kPositions; ++j) {
          const Vec x = Rows::at(row + static_cast<size_t>(j) * keys.row_bytes, d);
#pragma GCC unroll 8
          for (int q = 0; q < kQueries; ++q) dot[j * kStride + q] = fma(y[q], x, dot[j * kStride + q]);
        }
      }
      store(s, sum_each(dot));
      row += kPositions * keys.row_bytes;
    }
  }
}

// The query and position of each lane in a vector of scores.
template <int kStride>
struct ScoreLanes {
  int32_t lowest[kLanes], highest[kLanes];  // positions that the lane's query sees
  int32_t position[kLanes];                 // of the lane, from the vector's first on

  explicit ScoreLanes(const Panels& p) {
    for (int i = 0; i < kLanes; ++i) {
      lowest[i] = p.lowest[i % kStride];
      highest[i] = p.highest[i % kStride];
      position[i] = i / kStride;
    }
  }
};

// Gives all lanes of a query their maximum.
template <int kStride>
TANDEM_INLINE Vec max_of_queries(Vec v) {
#pragma GCC unroll 4
  for (int turn = kLanes / 2; turn >= kStride; turn /= 2) v = vmax(turn_lanes(v, turn), v);
  return v;
}

// Turns scores into weights and updates max, sum (per lane) and factor.
template <int kStride>
void softmax_panel(const Panels& p, int64_t first, int64_t n, bool masked) {
  constexpr int kPositions = kLanes / kStride;
  const ScoreLanes<kStride> lanes(p);
  const int64_t n_vecs = (n + kPositions - 1) / kPositions;
  const Vec old = load(p.max);
  Vec max = old;
  for (int64_t i = 0; i < n_vecs; ++i) {
    Vec x = load(p.s + i * kLanes);
    if (masked) {
      const IVec position = iadd(iset1(static_cast<int32_t>(first + i * kPositions)), iload(lanes.position));
      x = select(between(iload(lanes.lowest), position, iload(lanes.highest)), x, set1(kNothing));
      store(p.s + i * kLanes, x);
    }
    max = vmax(x, max);
  }
  max = max_of_queries<kStride>(max);
  const Vec m = subtractable(max), factor = vexp_at_most_1(old - m);
  Vec sum = load(p.sum) * factor;
  for (int64_t i = 0; i < n_vecs; ++i) {
    const Vec e = vexp_at_most_1(load(p.s + i * kLanes) - m);
    store(p.s + i * kLanes, e);
    sum = sum + e;
  }
  store(p.max, max);
  store(p.sum, sum);
  store(p.factor, factor);
}

// acc = acc * factor + weights times values, kVecs vectors of columns from the d-th on.
template <class Rows, int kQueries, int kVecs>
void update_columns(const Panels& p, const PanelRows& values, const Ahead& ahead, int64_t d) {
  constexpr int kStride = stride_of(kQueries);
  Vec acc[kQueries][kVecs];
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; ++q) {
    const Vec factor = set1(p.factor[q]);
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) acc[q][v] = load(p.acc + q * p.ld_v + d + v * kLanes) * factor;
  }
  const float* s = p.s;
  for (int64_t r = 0; r < values.n_runs; ++r) {
    const std::byte* row = values.runs[r].rows;
    for (int64_t i = 0; i < values.runs[r].n; ++i, row += values.row_bytes, s += kStride) {
      ahead.fetch_columns<Rows, kVecs>(ahead.rows.row_or(r, i, row), d);
      Vec x[kVecs];
#pragma GCC unroll 16
      for (int v = 0; v < kVecs; ++v) x[v] = Rows::at(row, d + v * kLanes);
#pragma GCC unroll 8
      for (int q = 0; q < kQueries; ++q) {
        const Vec y = set1(s[q]);
#pragma GCC unroll 16
        for (int v = 0; v < kVecs; ++v) acc[q][v] = fma(y, x[v], acc[q][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) store(p.acc + q * p.ld_v + d + v * kLanes, acc[q][v]);
  }
}

// All columns, in as many vectors at once as the registers hold.
template <class Rows, int kQueries, int kVecs>
void update_from(const Panels& p, const PanelRows& values, const Ahead& ahead, int64_t d) {
  for (; d + kVecs * kLanes <= p.ld_v; d += kVecs * kLanes)
    update_columns<Rows, kQueries, kVecs>(p, values, ahead, d);
  if constexpr (kVecs > 1) {
    if (d < p.ld_v) update_from<Rows, kQueries, kVecs / 2>(p, values, ahead, d);
  }
}
template <class Rows, int kQueries>
void update_panel(const Panels& p, const PanelRows& values, const Ahead& ahead) {
  update_from<Rows, kQueries, static_cast<int>(kLanes) / stride_of(kQueries)>(p, values, ahead, 0);
}

using PanelFn = void (*)(const Panels&, const PanelRows&, const Ahead&);
using SoftmaxPanel = void (*)(const Panels&, int64_t first, int64_t n, bool masked);

struct PanelFns {
  PanelFn dot, update;
};

// make(Index<n_queries>{}).
template <class Make>
auto fns_of_queries(int64_t n_queries, const Make& make) {
  static_assert(kFewQueries == 4 || kFewQueries == 8);
  constexpr int kMore = kFewQueries == 8 ? 4 : 0;
  const decltype(make(Index<1>{})) fns[] = {make(Index<1>{}),         make(Index<2>{}),         make(Index<3>{}),
                                            make(Index<4>{}),         make(Index<1 + kMore>{}), make(Index<2 + kMore>{}),
                                            make(Index<3 + kMore>{}), make(Index<4 + kMore>{})};
  return fns[n_queries - 1];
}
template <class Rows>
PanelFns panel_fns(int64_t n_queries) {
  return fns_of_queries(n_queries, [](auto n) { return PanelFns{dot_panel<Rows, n.value>, update_panel<Rows, n.value>}; });
}
SoftmaxPanel softmax_panel_fn(int64_t stride) {
  if constexpr (kFewQueries == 8) {
    if (stride == 8) return softmax_panel<8>;
  }
  return stride == 1 ? softmax_panel<1> : stride == 2 ? softmax_panel<2> : softmax_panel<4>;
}

// How the rows of a pool are read.
enum class Reading { f32, f16, bf16, converted };

Reading reading_of(DType dtype, const CacheRows& rows, int64_t positions_of_vector) {
  const bool direct = rows.ld == rows.head_dim && rows.block_size % positions_of_vector == 0;
  if (direct && dtype == DType::F32) return Reading::f32;
  if (direct && dtype == DType::F16) return Reading::f16;
  if (direct && dtype == DType::BF16) return Reading::bf16;
  return Reading::converted;
}

PanelFns panel_fns_of(Reading reading, int64_t n_queries) {
  switch (reading) {
    case Reading::f16: return panel_fns<RowsF16>(n_queries);
    case Reading::bf16: return panel_fns<RowsBF16>(n_queries);
    default: return panel_fns<RowsF32>(n_queries);
  }
}

// Of one of the two pools.
constexpr size_t kPanelBytes = 8 << 10;

int64_t rows_of_panel(const CacheRows& keys, const CacheRows& values) {
  const size_t row_bytes = keys.row_bytes < values.row_bytes ? values.row_bytes : keys.row_bytes;
  const auto n = static_cast<int64_t>(kPanelBytes / row_bytes) / kLanes * kLanes;
  return n < kLanes ? kLanes : lesser(n, kPanel);
}

void add_lanes(const Panels& p, int64_t stride) {
  Vec sum = load(p.sum);
  for (int64_t turn = kLanes / 2; turn >= stride; turn /= 2)
    sum = sum + turn_lanes(sum, static_cast<int>(turn));
  store(p.sum, sum);
}

// A call under way.
struct FewQueries {
  const AttentionCall& call;
  Panels p;
  Seen seen;
  CacheRows key_cache, value_cache;
  int64_t stride;
  Reading read_k, read_v;
  PanelFn dot, update;
  SoftmaxPanel softmax;

  FewQueries(const AttentionCall& c, const Panels& panels, const Seen& s)
      : call(c),
        p(panels),
        seen(s),
        key_cache(keys_of(c, p)),
        value_cache(c.values_in_keys ? key_cache : values_of(c, p)),
        stride(stride_of(static_cast<int>(c.n_queries))),
        read_k(reading_of(c.k_dtype, key_cache, kLanes / stride)),
        read_v(c.values_in_keys ? read_k : reading_of(c.v_dtype, value_cache, 1)),
        dot(panel_fns_of(read_k, c.n_queries).dot),
        update(panel_fns_of(read_v, c.n_queries).update),
        softmax(softmax_panel_fn(stride)) {
    scale_queries(call, p);
  }

  void fetch_values(int64_t first, int64_t n) const {
    if (!call.values_in_keys) RowsAhead{value_cache, first, n}.fetch(0, 1, 1);
  }

  // Attends to n positions from first on, a panel, and meanwhile fetches n_next from next_first on.
  void attend(int64_t first, int64_t n, int64_t next_first, int64_t n_next) const {
    const int64_t last = first + n - 1;
    if (last < seen.any_from || first > seen.any_to) return;
    PanelRows keys, own_values;
    Ahead next_keys, next_values;
    const PanelRows& values = call.values_in_keys ? keys : own_values;
    if (read_k == Reading::converted) {
      keys.convert(key_cache, first, n, n_next, p.k);
    } else {
      keys.find(key_cache, first, n);
      next_keys.rows.find(key_cache, next_first, n_next);
    }
    dot(p, keys, next_keys);
    if (call.softcap > 0) cap_scores(p.s, whole_vecs(n * stride), call.softcap);
    softmax(p, first, n, first < seen.all_from || last > seen.all_to || n % kLanes != 0);
    if (!call.values_in_keys && read_v == Reading::converted) {
      own_values.convert(value_cache, first, n, n_next, p.v);
    } else if (!call.values_in_keys) {
      own_values.find(value_cache, first, n);
      next_values.rows.find(value_cache, next_first, n_next);
    }
    update(p, values, next_values);
  }
};

[[maybe_unused]] void attend_few(const AttentionCall& call, const Panels& panels, const Seen& seen) {
  const FewQueries few(call, panels, seen);
  const int64_t panel = rows_of_panel(few.key_cache, few.value_cache), begin = call.kv_begin,
                end = call.kv_end;
  few.fetch_values(begin, lesser(panel, end - begin));
  for (int64_t first = begin; first < end; first += panel) {
    const int64_t n = lesser(end - first, panel), next = first + n;
    few.attend(first, n, next, lesser(end + call.kv_then - next, panel));
  }
  add_lanes(few.p, few.stride);
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
