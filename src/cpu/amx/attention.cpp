// Attention of many queries on tiles of bf16; fewer take the kernels of avx512/ with VNNI.
//
// As in simd/attention.h lanes are queries: S^T[position, query] = K Q^T needs no transposed keys, and the softmax over
// positions walks down the lanes. Its weights are packed to pairs and transposed to the left factor of acc += P V, whose
// right factor is pairs of the values' rows.
//
// Rounding. Scores stand in an exponent, so queries and keys are split in two planes, high + low, whose sum has 16 bits
// of mantissa (halves 11, so they lose nothing); three of the four products are computed, two for keys in bf16. Weights
// and values are one plane: the rounding of a sum of many is that of bf16 over the root of their number.
//
// Floors of a query and position: 3 * 2 * hd_k + 2 * hd_v operations, 1024 a cycle: 1.0 cycles with heads of 128 columns;
// an exponential and its packing, about 20 operations for 16 lanes, two a cycle: 0.6; the conversion of keys and values,
// 25 operations for 32 columns: 0.4 over 256 queries. On a core of a Sapphire Rapids 256 queries take 1.1 ns with heads of
// 128 columns and 0.71 ns with 64, where the FMA kernel takes 3.6 and 1.8: scores 1.2 cycles of 2.6 GHz, softmax 0.9,
// values 0.6, conversion 0.3. The tiles wait for L2, as in products (linear_layout.h), which is why more queries or more
// positions at a time gain nothing.
#include "cpu/avx512/vec.h"  // first: the rest is written in its vectors

#include "cpu/amx/attention_pack.h"
#include "cpu/amx/tiles.h"
#include "cpu/simd/attention_panels.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

constexpr int64_t kMaxTileQueries = 256;
constexpr int64_t kLeastQueries = 24;  // from here on faster than the kernels of avx512/
constexpr int64_t kTile = 16, kPair = 32;

// The working memory of a tile of queries. Padding is zero.
struct Work {
  int64_t n_q;         // queries, a multiple of 32
  int64_t ld_k, ld_v;  // columns, multiples of 32
  int64_t n_panel;     // positions at a time
  std::byte* q;        // [n_q / 16][2 planes][ld_k / 32] tiles: the right factor of the scores
  std::byte* k;        // [n_panel / 16][2 planes][ld_k / 32] tiles: their left factor
  std::byte* v;        // [ld_v / 32][n_panel / 32][2] tiles: the right factor of the sums
  std::byte* weights;  // [n_q / 16][n_panel / 32] tiles: their left factor
  float* s;            // [n_panel, n_q]
  float* acc;          // [n_q, ld_v]
  float* rows;         // [32, max(ld_k, ld_v)]
  float* max;          // [n_q]
  float* sum;          // [n_q]
  float* factor;       // [n_q]
  int32_t* lowest;     // [n_q]
  int32_t* highest;    // [n_q]
  size_t bytes;

  Work(const AttentionCall& call, std::byte* scratch)
      : n_q((call.n_queries + kPair - 1) / kPair * kPair),
        ld_k((call.head_dim_k + kPair - 1) / kPair * kPair),
        ld_v((call.head_dim_v + kPair - 1) / kPair * kPair),
        n_panel(128) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(scratch);
    uintptr_t end = begin;
    const auto take = [&](int64_t n) {
      const uintptr_t piece = end;
      end += static_cast<size_t>(n + 63) / 64 * 64;
      return piece;
    };
    q = reinterpret_cast<std::byte*>(take(n_q * ld_k * 4));
    k = reinterpret_cast<std::byte*>(take(n_panel * ld_k * 4));
    v = reinterpret_cast<std::byte*>(take(n_panel * ld_v * 2));
    weights = reinterpret_cast<std::byte*>(take(n_q * n_panel * 2));
    s = reinterpret_cast<float*>(take(n_panel * n_q * 4));
    acc = reinterpret_cast<float*>(take(n_q * ld_v * 4));
    rows = reinterpret_cast<float*>(take(kPair * (ld_k > ld_v ? ld_k : ld_v) * 4));
    max = reinterpret_cast<float*>(take(n_q * 4));
    sum = reinterpret_cast<float*>(take(n_q * 4));
    factor = reinterpret_cast<float*>(take(n_q * 4));
    lowest = reinterpret_cast<int32_t*>(take(n_q * 4));
    highest = reinterpret_cast<int32_t*>(take(n_q * 4));
    bytes = end - begin;
  }

  int64_t plane() const { return ld_k / kPair * 1024; }  // bytes of 16 rows of one plane
};

void pack_queries(const AttentionCall& call, const Work& w) {
  for (int64_t first = 0; first < w.n_q; first += kTile) {
    zero(w.rows, kTile * w.ld_k);
    for (int64_t i = 0; i < kTile && first + i < call.n_queries; ++i) {
      const float* from = call.q[first + i];
      float* to = w.rows + i * w.ld_k;
      for (int64_t d = 0; d < call.head_dim_k; ++d) to[d] = from[d] * call.scale;
    }
    std::byte* to = w.q + first / kTile * 2 * w.plane();
    pack_right_transposed({w.rows, w.ld_k, w.ld_k, to, to + w.plane()});
  }
}

// n cached rows from position `first` on, 32 at a time: calls pack(index of the first row) when they are in w.rows.
template <class Pack>
void for_each_rows(const CacheRows& cache, const Work& w, int64_t first, int64_t n, const Pack& pack) {
  if (cache.ld != cache.head_dim || n % kPair != 0) zero(w.rows, kPair * cache.ld);
  for (int64_t i = 0; i < n; i += kPair) {
    const int64_t present = n - i < kPair ? n - i : kPair;
    if (present < kPair) zero(w.rows + present * cache.ld, (kPair - present) * cache.ld);
    cache.load(first + i, present, w.rows);
    pack(i);
  }
}

void pack_values(const Work& w, int64_t ld, int64_t i) {
  pack_right({w.rows, ld, w.ld_v, w.v + i / kPair * 2048, nullptr}, w.n_panel / kPair * 2048);
}

// K of the panel, and V if it is in the keys.
void pack_keys(const AttentionCall& call, const CacheRows& keys, const Work& w, int64_t first, int64_t n) {
  const bool has_low = call.k_dtype != DType::BF16;
  for_each_rows(keys, w, first, n, [&](int64_t i) {
    for (int64_t half = 0; half < 2; ++half) {
      std::byte* to = w.k + (i / kTile + half) * 2 * w.plane();
      pack_left({w.rows + half * kTile * w.ld_k, w.ld_k, w.ld_k, to, has_low ? to + w.plane() : nullptr});
    }
    if (call.values_in_keys) pack_values(w, w.ld_k, i);
  });
}

// C += A B for two by two tiles in registers 0 .. 3, with A in 4 and 5 and B in 6 and 7.
TANDEM_INLINE void multiply_tiles() {
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}
TANDEM_INLINE void load_left(const std::byte* a, int64_t stride) {
  _tile_loadd(4, a, 64);
  _tile_loadd(5, a + stride, 64);
}
TANDEM_INLINE void load_right(const std::byte* b, int64_t stride) {
  _tile_loadd(6, b, 64);
  _tile_loadd(7, b + stride, 64);
}
TANDEM_INLINE void store_sums(float* c, int64_t ld) {
  _tile_stored(0, c, ld * 4);
  _tile_stored(1, c + kTile, ld * 4);
  _tile_stored(2, c + kTile * ld, ld * 4);
  _tile_stored(3, c + kTile * ld + kTile, ld * 4);
}

// s = K Q^T for n positions.
template <bool k_has_low>
void multiply_scores(const Work& w, int64_t n, const RowsAhead& ahead) {
  const int64_t plane = w.plane(), strip = 2 * plane;
  for (int64_t p = 0; p < n; p += kPair) {
    for (int64_t c = 0; c < w.n_q; c += kPair) {
      ahead.fetch(p * w.n_q / kPair + c, p * w.n_q / kPair + c + kPair, n * w.n_q / kPair);
      const std::byte *k = w.k + p / kTile * strip, *q = w.q + c / kTile * strip;
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      for (int64_t d = 0; d < plane; d += 1024) {
        load_left(k + d, strip);
        load_right(q + plane + d, strip);
        multiply_tiles();
        load_right(q + d, strip);
        multiply_tiles();
        if constexpr (k_has_low) {
          load_left(k + plane + d, strip);
          multiply_tiles();
        }
      }
      store_sums(w.s + p * w.n_q + c, w.n_q);
    }
  }
}

// Turns the scores of n positions (n a multiple of 32) into tiles of weights, and updates max, sum and factor.
void softmax_to_weights(const Work& w, int64_t n) {
  alignas(64) std::byte pairs[1024];  // [16 pairs of positions][16 queries][2]
  for (int64_t c = 0; c < w.n_q; c += kLanes) {
    const float* s = w.s + c;
    const Vec old = load(w.max + c), max = max_of_rows(s, w.n_q, n, old);
    const Vec m = subtractable(max), factor = vexp_bounded(old - m);
    Vec sum = load(w.sum + c) * factor;
    std::byte* to = w.weights + c / kTile * (w.n_panel / kPair) * 1024;
    for (int64_t p = 0; p < n; p += kPair, to += 1024) {
      for (int64_t i = 0; i < kTile; ++i) {
        const float* two = s + (p + 2 * i) * w.n_q;
        const Vec even = vexp_bounded(load(two) - m), odd = vexp_bounded(load(two + w.n_q) - m);
        _mm512_store_si512(pairs + 64 * i, pack_pairs(even, odd));
        sum = sum + (even + odd);
      }
      transpose_words(pairs, to);
    }
    store(w.max + c, max);
    store(w.sum + c, sum);
    store(w.factor + c, factor);
  }
}

// acc = acc * factor + P V over n positions.
void add_values(const Work& w, int64_t n, const RowsAhead& ahead) {
  for (int64_t i = 0; i < w.n_q; ++i) {
    if (w.factor[i] == 1.0f) continue;
    const Vec factor = set1(w.factor[i]);
    float* row = w.acc + i * w.ld_v;
    for (int64_t d = 0; d < w.ld_v; d += kLanes) store(row + d, load(row + d) * factor);
  }
  settle_stores();
  const int64_t weights_strip = w.n_panel / kPair * 1024, values_strip = w.n_panel / kPair * 2048;
  for (int64_t c = 0; c < w.n_q; c += kPair) {
    for (int64_t d = 0; d < w.ld_v; d += kPair) {
      ahead.fetch(c * w.ld_v / kPair + d, c * w.ld_v / kPair + d + kPair, w.n_q * w.ld_v / kPair);
      float* acc = w.acc + c * w.ld_v + d;
      _tile_loadd(0, acc, w.ld_v * 4);
      _tile_loadd(1, acc + kTile, w.ld_v * 4);
      _tile_loadd(2, acc + kTile * w.ld_v, w.ld_v * 4);
      _tile_loadd(3, acc + kTile * w.ld_v + kTile, w.ld_v * 4);
      const std::byte *a = w.weights + c / kTile * weights_strip, *b = w.v + d / kPair * values_strip;
      for (int64_t p = 0; p < n; p += kPair, a += 1024, b += 2048) {
        load_left(a, weights_strip);
        load_right(b, 1024);
        multiply_tiles();
      }
      store_sums(acc, w.ld_v);
    }
  }
}

void attend_panels(const AttentionCall& call, const Work& w, const Seen& seen) {
  const CacheRows keys = keys_of(call, w), values = values_of(call, w);
  for (int64_t first = call.kv_begin; first < call.kv_end; first += w.n_panel) {
    const int64_t n = call.kv_end - first < w.n_panel ? call.kv_end - first : w.n_panel, last = first + n - 1;
    if (last < seen.any_from || first > seen.any_to) continue;
    const int64_t padded = (n + kPair - 1) / kPair * kPair;
    pack_keys(call, keys, w, first, n);
    settle_stores();
    const RowsAhead ahead_values{values, first, call.values_in_keys ? 0 : n};
    call.k_dtype == DType::BF16 ? multiply_scores<false>(w, padded, ahead_values)
                                : multiply_scores<true>(w, padded, ahead_values);
    if (call.softcap > 0) cap_scores(w.s, n * w.n_q, call.softcap);
    if (first < seen.all_from || last > seen.all_to) hide_unseen_columns(w, first, n);
    for (int64_t i = n * w.n_q; i < padded * w.n_q; i += kLanes) store(w.s + i, set1(kNothing));
    softmax_to_weights(w, padded);
    if (!call.values_in_keys) {
      for_each_rows(values, w, first, n, [&](int64_t i) { pack_values(w, w.ld_v, i); });
    }
    const int64_t left = call.kv_end - first - n;
    add_values(w, padded, {keys, first + n, left < w.n_panel ? left : w.n_panel});
  }
}

size_t tiles_scratch_bytes(const AttentionCall& call) {
  return Work(call, nullptr).bytes;
}

void attend_tiles(const AttentionCall& call, std::byte* scratch) {
  Work w(call, scratch);
  const Seen seen = find_seen(call, w);
  zero(w.acc, w.n_q * w.ld_v);
  pack_queries(call, w);
  {
    const TileScope tiles;
    attend_panels(call, w, seen);
  }
  for (int64_t i = 0; i < call.n_queries; ++i) {
    memcpy(call.acc + i * call.head_dim_v, w.acc + i * w.ld_v,
           static_cast<size_t>(call.head_dim_v) * sizeof(float));
    call.sum[i] = w.sum[i];
    call.max[i] = w.max[i];
  }
}

}  // namespace

bool takes(const AttentionCall& call) {
  const bool exact = call.k_dtype == DType::F32 || (!call.values_in_keys && call.v_dtype == DType::F32);
  return call.n_queries >= kLeastQueries && !exact;
}

const AttentionKernels& attention_kernels() {
  static constexpr AttentionKernels table{kMaxTileQueries, tiles_scratch_bytes, attend_tiles, nullptr};
  return table;
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
