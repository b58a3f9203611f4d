// Attention of many queries in products of two numbers a lane: 16-bit integers for the scores, bf16 for the values. Fewer
// queries take the kernels of avx512/ with VNNI.
//
// As in simd/attention.h lanes are queries: S^T[position, query] = K Q^T needs no transposed keys, and the softmax over
// positions walks down the lanes and gives at once the form that acc += P V broadcasts from. An element of both products
// is a word of two: columns of a key and a query, positions of a weight and a value.
//
// Rounding. Scores stand in an exponent. Three products of two planes of bf16, as amx/ has them, would take longer than
// one of floats; so keys and queries are integers of 16 bits (row_codes.h). Weights and values are bf16 as in amx/: the
// rounding of a sum of many is that of bf16 over the root of their number (softmax_pairs.h).
//
// Floors of a query and position on a Zen 4, whose multipliers do one vector a cycle: (hd_k + hd_v) / 32 products, 8.0
// cycles with heads of 128 columns, half of FMA's; an exponential and its packing, about 11 operations for 16 lanes, 0.7;
// the conversion of keys and values, 0.2 over 256 queries. Bytes: 512 of the cache for 256 queries. Reached at 3.66 GHz,
// 256 queries: 2.65 ns or 9.7 cycles with heads of 128 columns, 82% of the products' floor, where the FMA kernel takes
// 5.1; 1.43 ns with 64 (FMA 2.6), 5.2 with 256 (10.2); behind 16384 positions in memory the same. Nine queries of 128
// columns take 7.3 (8.9). The rest: the softmax, and sums that are loaded and stored for each panel. A panel of
// 192 gains 1%; tiles of 128 queries lose 3%, strips of 128 2%.
#include "cpu/avx512/vec.h"  // first: the rest is written in its vectors

#include "cpu/bf16/row_codes.h"
#include "cpu/bf16/softmax_pairs.h"
#include "cpu/simd/product.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

constexpr int64_t kMaxTileQueries = 256;
// From 9 on it is faster than the kernels of avx512/; from so many, as in amx/, that steps of a few guesses round as
// tokens alone do.
constexpr int64_t kLeastQueries = 24;
constexpr int64_t kStripQueries = 64;
constexpr int64_t kPanelRows = 128;  // positions at a time
constexpr int64_t kRows = 16;        // converted together

// Up to kStripQueries queries of a tile.
struct Strip {
  int64_t n_q;                      // whole vectors
  const float* q;                   // [ld_k / 2, n_q] pairs of codes
  float* q_unit;                    // [n_q]
  float* s;                         // [kPanelRows, n_q] scores
  float* weights;                   // [kPanelRows / 2, n_q] pairs of bf16
  float* acc;                       // [n_q, ld_v]
  float *max, *sum, *factor;        // [n_q]
  const int32_t *lowest, *highest;  // [n_q] positions that a query sees
};

// The working memory of a tile of queries. Padding is zero. Words of two numbers are typed as floats.
struct Work {
  int64_t n_q;         // queries, whole vectors
  int64_t ld_k, ld_v;  // columns: a multiple of 32, of 16
  float* q;            // strip by strip
  float* q_unit;       // [n_q]
  std::byte* k;        // [kPanelRows, ld_k] codes
  float* k_unit;       // [kPanelRows]
  float* v;            // [kPanelRows / 2, ld_v] pairs of bf16
  float* s;
  float* weights;
  float* acc;   // [n_q, ld_v]
  float* rows;  // [kRows, max(ld_k, ld_v)]
  float *max, *sum, *factor;
  int32_t *lowest, *highest;
  size_t bytes;

  Work(const AttentionCall& call, std::byte* scratch)
      : n_q(whole_vecs(call.n_queries)),
        ld_k((call.head_dim_k + 31) / 32 * 32),
        ld_v(whole_vecs(call.head_dim_v)) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(scratch);
    uintptr_t end = begin;
    const auto take = [&](int64_t n_words) {
      const uintptr_t piece = end;
      end += static_cast<size_t>(n_words + 15) / 16 * 64;
      return reinterpret_cast<float*>(piece);
    };
    const int64_t strip = n_q < kStripQueries ? n_q : kStripQueries;
    q = take(n_q * ld_k / 2);
    q_unit = take(n_q);
    k = reinterpret_cast<std::byte*>(take(kPanelRows * ld_k / 2));
    k_unit = take(kPanelRows);
    v = take(kPanelRows / 2 * ld_v);
    s = take(kPanelRows * strip);
    weights = take(kPanelRows / 2 * strip);
    acc = take(n_q * ld_v);
    rows = take(kRows * (ld_k > ld_v ? ld_k : ld_v));
    max = take(n_q);
    sum = take(n_q);
    factor = take(n_q);
    lowest = reinterpret_cast<int32_t*>(take(n_q));
    highest = reinterpret_cast<int32_t*>(take(n_q));
    bytes = end - begin;
  }

  int64_t n_strips() const { return (n_q + kStripQueries - 1) / kStripQueries; }
  Strip strip(int64_t first) const {
    const int64_t n = n_q - first < kStripQueries ? n_q - first : kStripQueries;
    return {n,
            q + first * ld_k / 2,
            q_unit + first,
            s,
            weights,
            acc + first * ld_v,
            max + first,
            sum + first,
            factor + first,
            lowest + first,
            highest + first};
  }
};

void pack_queries(const AttentionCall& call, const Work& w) {
  for (int64_t first = 0; first < w.n_q; first += kRows) {
    zero(w.rows, kRows * w.ld_k);
    for (int64_t i = 0; i < kRows && first + i < call.n_queries; ++i) {
      const float* from = call.q[first + i];
      float* to = w.rows + i * w.ld_k;
      for (int64_t d = 0; d < call.head_dim_k; ++d) to[d] = from[d] * call.scale;
    }
    encode_rows(w.rows, w.ld_k, w.k, w.q_unit + first);
    const int64_t strip_first = first / kStripQueries * kStripQueries;
    const Strip strip = w.strip(strip_first);
    float* to = w.q + strip_first * w.ld_k / 2 + (first - strip_first);
    const float* words = reinterpret_cast<const float*>(w.k);
    for (int64_t i = 0; i < w.ld_k / 2; ++i) {
      for (int64_t r = 0; r < kRows; ++r) to[i * strip.n_q + r] = words[r * w.ld_k / 2 + i];
    }
  }
}

// n cached rows from position `first` on, 16 at a time: calls pack(index of the first row) when they are in w.rows, with
// zeros after the last one.
template <class Pack>
TANDEM_INLINE void for_each_rows(const CacheRows& cache, const Work& w, int64_t first, int64_t n,
                                 const Pack& pack) {
  if (cache.ld != cache.head_dim) zero(w.rows, kRows * cache.ld);
  for (int64_t i = 0; i < n; i += kRows) {
    const int64_t present = n - i < kRows ? n - i : kRows;
    if (present < kRows) zero(w.rows + present * cache.ld, (kRows - present) * cache.ld);
    cache.load(first + i, present, w.rows);
    pack(i);
  }
}

// From rows of w.rows, ld apart, which are rows `i` .. `i + 15` of the panel.
void pack_values(const Work& w, int64_t ld, int64_t i) {
  for (int64_t r = 0; r < kRows; r += 2) {
    const float *even = w.rows + r * ld, *odd = even + ld;
    float* to = w.v + (i + r) / 2 * w.ld_v;
    for (int64_t c = 0; c < w.ld_v; c += kLanes) {
      _mm512_store_si512(to + c, pack_pairs(load(even + c), load(odd + c)));
    }
  }
}

// Two products of 16-bit integers a lane. In sums of IVec, which are 64-bit integers to GCC 12, it copies every one.
using CodeSums = int32_t __attribute__((vector_size(64)));
struct DotCodes {
  TANDEM_INLINE static CodeSums step(Vec a, Vec b, CodeSums c) {
    return (CodeSums)_mm512_dpwssd_epi32((IVec)c, _mm512_castps_si512(a), _mm512_castps_si512(b));
  }
};
// Two products of bf16 a lane.
struct DotPairs {
  TANDEM_INLINE static Vec step(Vec a, Vec b, Vec c) {
    return _mm512_dpbf16_ps(c, (__m512bh)_mm512_castps_si512(a), (__m512bh)_mm512_castps_si512(b));
  }
};

// The rows of the next panel, of which a strip's scores fetch one part of n_parts.
struct PanelAhead {
  RowsAhead keys, values;
  int64_t part, n_parts;

  // Its share of steps [from, to) of `total`.
  TANDEM_INLINE void fetch(int64_t from, int64_t to, int64_t total) const {
    keys.fetch(part * total + from, part * total + to, n_parts * total);
    values.fetch(part * total + from, part * total + to, n_parts * total);
  }
};

// s = K Q^T of n positions.
struct Scores {
  const Work& w;
  const Strip& strip;
  int64_t n;
  PanelAhead ahead;
  template <int kTileRows, int kVecs>
  void run(int64_t row, int64_t column) const {
    ahead.fetch(row, row + kTileRows, n);
    const int64_t words = w.ld_k / 2;
    CodeSums c[kTileRows][kVecs];
    Vec unit[kVecs];
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) c[r][v] = CodeSums{};
    }
    const RowsOf keys{reinterpret_cast<const float*>(w.k) + row * words, words};
    multiply_add<kTileRows, kVecs, DotCodes>(words, keys, strip.q + column, strip.n_q, c);
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) unit[v] = load(strip.q_unit + column + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      const Vec k_unit = set1(w.k_unit[row + r]);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) {
        store(strip.s + (row + r) * strip.n_q + column + v * kLanes,
              _mm512_cvtepi32_ps((IVec)c[r][v]) * (k_unit * unit[v]));
      }
    }
  }
};

// Turns the scores of n positions (n even) into weights.
void softmax_of_strip(const Strip& strip, int64_t n) {
  for (int64_t c = 0; c < strip.n_q; c += kLanes) {
    float* to = strip.weights + c;
    softmax_to_pairs(
        strip.s + c, strip.n_q, n, {strip.max + c, strip.sum + c, strip.factor + c},
        [&](int64_t i, __m512i pairs)
            __attribute__((always_inline)) { _mm512_store_si512(to + i * strip.n_q, pairs); });
  }
}

void attend_panels(const AttentionCall& call, const Work& w, const Seen& seen) {
  const CacheRows keys = keys_of(call, w), values = values_of(call, w);
  for (int64_t first = call.kv_begin; first < call.kv_end; first += kPanelRows) {
    const int64_t n = call.kv_end - first < kPanelRows ? call.kv_end - first : kPanelRows,
                  last = first + n - 1;
    if (last < seen.any_from || first > seen.any_to) continue;
    for_each_rows(keys, w, first, n, [&](int64_t i) {
      encode_rows(w.rows, w.ld_k, w.k + i * w.ld_k * 2, w.k_unit + i);
      if (call.values_in_keys) pack_values(w, w.ld_k, i);
    });
    if (!call.values_in_keys) {
      for_each_rows(values, w, first, n, [&](int64_t i) { pack_values(w, w.ld_v, i); });
    }
    const int64_t next = first + n, left = call.kv_end - next, n_next = left < kPanelRows ? left : kPanelRows;
    PanelAhead ahead{{keys, next, n_next}, {values, next, call.values_in_keys ? 0 : n_next}, 0, w.n_strips()};
    for (int64_t at = 0; at < w.n_q; at += kStripQueries, ++ahead.part) {
      const Strip strip = w.strip(at);
      for_each_tile(n, strip.n_q / kLanes, Scores{w, strip, n, ahead});
      if (call.softcap > 0) cap_scores(strip.s, n * strip.n_q, call.softcap);
      if (first < seen.all_from || last > seen.all_to) hide_unseen_columns(strip, first, n);
      if (n % 2 != 0) {
        for (int64_t c = 0; c < strip.n_q; c += kLanes) store(strip.s + n * strip.n_q + c, set1(kNothing));
      }
      softmax_of_strip(strip, n + n % 2);
      const int64_t n_queries = call.n_queries - at < strip.n_q ? call.n_queries - at : strip.n_q;
      for_each_tile(n_queries, w.ld_v / kLanes,
                    Update<ColumnsOf, DotPairs>{(n + 1) / 2, strip.weights, w.v, strip.n_q, w.ld_v,
                                                strip.factor, strip.acc, w.ld_v});
    }
  }
}

size_t tile_scratch_bytes(const AttentionCall& call) {
  return Work(call, nullptr).bytes;
}

void attend_tile(const AttentionCall& call, std::byte* scratch) {
  Work w(call, scratch);
  const Seen seen = find_seen(call, w);
  zero(w.acc, w.n_q * w.ld_v);
  pack_queries(call, w);
  attend_panels(call, w, seen);
  for (int64_t i = 0; i < call.n_queries; ++i) {
    memcpy(call.acc + i * call.head_dim_v, w.acc + i * w.ld_v,
           static_cast<size_t>(call.head_dim_v) * sizeof(float));
    call.sum[i] = w.sum[i];
    call.max[i] = w.max[i] * kLn2;
  }
}

}  // namespace

bool takes(const AttentionCall& call) {
  const bool exact = call.k_dtype == DType::F32 || (!call.values_in_keys && call.v_dtype == DType::F32);
  return call.n_queries >= kLeastQueries && !exact;
}

const AttentionKernels& attention_kernels() {
  static constexpr AttentionKernels table{kMaxTileQueries, tile_scratch_bytes, attend_tile, nullptr};
  return table;
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
