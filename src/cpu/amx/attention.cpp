// Attention of many queries on tiles: bytes for the scores, bf16 for the values. Fewer queries take tiles of bytes
// (attention_codes.cpp) or the kernels of avx512/ with VNNI.
//
// Lanes are queries, as in simd/attention.h: S^T[position, query] = K Q^T needs no transposed keys, the softmax over
// positions walks down the lanes, and its weights, packed to pairs of positions, are at once the right factor of
// acc^T[column, query] += V^T P^T. Only the values are transposed, once for all queries of a tile.
//
// Rounding. Scores stand in an exponent, so keys and queries are integers of 16 bits, relative to the greatest of their row,
// in two planes of bytes. Three of the four products are computed; bytes multiply twice as fast as bf16, so these take half of
// what three products of bf16 would. The error of a score is mostly the fourth: one deviation is 62000 / (|a| |b|) of |a| |b|,
// where |a| are norms of rows of codes; 3e-6 for random rows of 128 columns, and at most 6e-5, where one column has all of
// both rows. Weights and values are bf16: the rounding of a sum of many is that of bf16 over the root of their number
// (softmax_pairs.h).
//
// A panel of positions is converted for all queries of a tile; then each strip of 32 queries does its scores, weights and
// values while these are in L1. The vectors turn a block's products into weights while the tiles multiply the next one. They share
// a port: a tile operation takes it for 16 cycles.
//
// Floors of a query and position with heads of 128 columns, in cycles of that port and its sibling: 0.42 for the products of
// scores, 0.28 for those of values (with what tile operations take on random numbers, 18 cycles), 0.5 of either for 16.5 vector
// operations of 16 lanes; stores of tiles, which nothing overlaps, 0.1. Conversion: 110 operations a position over 512
// queries. Reached on a core of a Granite Rapids at 3.4 GHz, 512 queries behind 16384 positions: 0.61 ns or 2.1 cycles with
// heads of 128 columns (0.97 ns with three planes of bf16, whole panels of scores and transposed weights), 0.40 with 64
// (0.63), 1.1 with 256 (2.2). Panels of 128 take 5% longer, tiles of 256 queries 15%.
#include "cpu/avx512/vec.h"  // first: the rest is written in its vectors

#include "cpu/amx/attention_codes.h"
#include "cpu/amx/attention_pack.h"
#include "cpu/amx/tiles.h"
#include "cpu/simd/attention_panels.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

constexpr int64_t kMaxTileQueries = 512;
constexpr int64_t kLeastQueries = 24;  // from here on faster than the kernels of avx512/
constexpr int64_t kPanelRows = 256;    // positions at a time
constexpr int64_t kTile = 16, kPair = 32;
constexpr int64_t kCodeColumns = 64;  // of a tile
constexpr float kLog2E = 1.44269504f, kLn2 = 0.69314718f;
constexpr float kMostExcess = 40;  // of a weight over 1, in powers of two
constexpr int64_t kTileBytes = 1024, kTileFloats = 256;
constexpr int64_t kValueStrip = kPanelRows / kPair * kTileBytes;  // of 16 columns

// 32 queries of a tile, as two tiles of columns.
struct Strip {
  const std::byte* q;               // [2][ld_k / 64][high, low] tiles
  const float* q_unit;              // [32] log2(e) * 256 times the unit of the codes
  float* acc;                       // [ld_v / 16][2][16 columns][16 queries]
  float *max, *sum;                 // [32] log2 of the maximum, whole
  const int32_t *lowest, *highest;  // [32] positions that a query sees
  // Of a panel: all queries see all positions; some see the first ones of theirs; and these see the panel's first.
  bool sees_all, is_new, new_see_first;
};

// The working memory of a tile of queries. Padding is zero.
struct Work {
  int64_t n_q;                // queries, a multiple of 32
  int64_t ld_k, ld_v;         // columns: a multiple of 64, of 32
  std::byte* q;               // strip by strip
  float* q_unit;              // [n_q]
  std::byte* k;               // [kPanelRows / 16][ld_k / 64][high, low] tiles
  float* k_unit;              // [kPanelRows]
  std::byte* v;               // [ld_v / 16][kPanelRows / 32] tiles of [16 columns][32 positions]
  int32_t* products;          // [2 blocks][high, middle][2][16 positions][16 queries]
  std::byte* weights;         // [2][kPanelRows / 32] tiles of [16 pairs of positions][16 queries][2]
  float* acc;                 // strip by strip
  float* rows;                // [32, max(ld_k, ld_v)]
  float *max, *sum;           // [n_q]
  int32_t *lowest, *highest;  // [n_q]
  size_t bytes;

  Work(const AttentionCall& call, std::byte* scratch)
      : n_q((call.n_queries + kPair - 1) / kPair * kPair),
        ld_k((call.head_dim_k + kCodeColumns - 1) / kCodeColumns * kCodeColumns),
        ld_v((call.head_dim_v + kPair - 1) / kPair * kPair) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(scratch);
    uintptr_t end = begin;
    const auto take = [&](int64_t n_bytes) {
      const uintptr_t piece = end;
      end += static_cast<size_t>(n_bytes + 63) / 64 * 64;
      return piece;
    };
    const auto floats = [&](int64_t n) { return reinterpret_cast<float*>(take(n * 4)); };
    const auto tiles = [&](int64_t n_bytes) { return reinterpret_cast<std::byte*>(take(n_bytes)); };
    q = tiles(n_q * ld_k * 2);
    q_unit = floats(n_q);
    k = tiles(kPanelRows * ld_k * 2);
    k_unit = floats(kPanelRows);
    v = tiles(kPanelRows * ld_v * 2);
    products = reinterpret_cast<int32_t*>(take(2 * 4 * kTileBytes));
    weights = tiles(2 * kValueStrip);
    acc = floats(n_q * ld_v);
    rows = floats(kPair * (ld_k > ld_v ? ld_k : ld_v));
    max = floats(n_q);
    sum = floats(n_q);
    lowest = reinterpret_cast<int32_t*>(take(n_q * 4));
    highest = reinterpret_cast<int32_t*>(take(n_q * 4));
    bytes = end - begin;
  }

  int64_t code_strip() const { return ld_k / kCodeColumns * 2 * kTileBytes; }  // bytes of 16 rows
  Strip strip(int64_t first) const {
    return {q + first / kTile * code_strip(),
            q_unit + first,
            acc + first * ld_v,
            max + first,
            sum + first,
            lowest + first,
            highest + first,
            false,
            false,
            true};
  }
};

void pack_queries(const AttentionCall& call, const Work& w) {
  for (int64_t first = 0; first < w.n_q; first += kTile) {
    zero(w.rows, kTile * w.ld_k);
    for (int64_t i = 0; i < kTile && first + i < call.n_queries; ++i) {
      const float* from = call.q[first + i];
      float* to = w.rows + i * w.ld_k;
      for (int64_t d = 0; d < call.head_dim_k; ++d) to[d] = from[d] * call.scale;
    }
    encode_rows(w.rows, w.ld_k, w.ld_k, w.k, w.q_unit + first);
    std::byte* to = w.q + first / kTile * w.code_strip();
    for (int64_t at = 0; at < w.code_strip(); at += kTileBytes) transpose_words(w.k + at, to + at);
    // Not 0, because hidden scores are -inf.
    store(w.q_unit + first, vmax(set1(1e-30f), load(w.q_unit + first) * set1(256 * kLog2E)));
  }
}

// n cached rows from position `first` on, 32 at a time: calls pack(index of the first row) when they are in w.rows, with zeros
// after the last one.
template <class Pack>
TANDEM_INLINE void for_each_rows(const CacheRows& cache, const Work& w, int64_t first, int64_t n,
                                 const Pack& pack) {
  if (cache.ld != cache.head_dim) zero(w.rows, kPair * cache.ld);
  for (int64_t i = 0; i < n; i += kPair) {
    const int64_t present = n - i < kPair ? n - i : kPair;
    if (present < kPair) zero(w.rows + present * cache.ld, (kPair - present) * cache.ld);
    cache.load(first + i, present, w.rows);
    pack(i);
  }
}

void pack_values(const Work& w, int64_t ld, int64_t i) {
  pack_transposed(w.rows, ld, w.ld_v, w.v + i / kPair * kTileBytes, kValueStrip);
}

void pack_panel(const AttentionCall& call, const CacheRows& keys, const CacheRows& values, const Work& w,
                int64_t first, int64_t n) {
  for_each_rows(keys, w, first, n, [&](int64_t i) {
    for (int64_t r = 0; r < kPair; r += kTile) {
      encode_rows(w.rows + r * w.ld_k, w.ld_k, w.ld_k, w.k + (i + r) / kTile * w.code_strip(),
                  w.k_unit + i + r);
    }
    if (call.values_in_keys) pack_values(w, w.ld_k, i);
  });
  if (call.values_in_keys) return;
  for_each_rows(values, w, first, n, [&](int64_t i) { pack_values(w, w.ld_v, i); });
}

// Products of 16 keys with 32 queries: [high, middle][2][16 keys][16 queries], sums of high bytes, and of a high and a low
// one. An operation waits for the one three before. Calls beside() six times for each 64 columns.
template <class Beside>
TANDEM_INLINE void multiply_codes(const std::byte* k, const std::byte* q, int64_t strip, int32_t* products,
                                  Beside& beside) {
  zero_sums();
  for (int64_t at = 0; at < strip; at += 2 * kTileBytes) {
    _tile_loadd(5, k + at + kTileBytes, 64);
    _tile_loadd(6, q + at, 64);
    _tile_dpbssd(2, 5, 6);
    beside();
    _tile_loadd(7, q + strip + at, 64);
    _tile_dpbssd(3, 5, 7);
    beside();
    _tile_loadd(4, k + at, 64);
    _tile_dpbssd(0, 4, 6);
    beside();
    _tile_loadd(6, q + at + kTileBytes, 64);
    _tile_dpbssd(2, 4, 6);
    beside();
    _tile_loadd(5, q + strip + at + kTileBytes, 64);
    _tile_dpbssd(3, 4, 5);
    beside();
    _tile_dpbssd(1, 4, 7);
    beside();
  }
  store_sums(products);
}

// acc^T += V^T P^T for 32 columns, 32 queries and n positions.
TANDEM_INLINE void multiply_values(const std::byte* v, const std::byte* weights, int64_t n, float* acc) {
  load_sums(acc);
  for (int64_t p = 0; p < n; p += kPair, v += kTileBytes, weights += kTileBytes) {
    _tile_loadd(4, v, 64);
    _tile_loadd(6, weights, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, weights + kValueStrip, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, v + kValueStrip, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  store_sums(acc);
}

// The state of 16 queries over a panel. The maximum is that of earlier panels: weights may exceed 1, because bf16 and floats have
// the range for it. Where it is so much exceeded that they do not, the panel is done again.
//
// A score's log2 less the maximum is rounded by adding 1.5 * 2^23, whose lowest bits are then the exponent of the weight.
struct Columns {
  static constexpr float kRounding = 0x1.8p23f;

  Vec unit, rounding;  // log2 of a score of 1; kRounding less the maximum
  Vec sum, most;       // of weights; kRounding and the exponent of the greatest weight
  IVec lowest, highest;

  Columns(const Strip& strip, int64_t at)
      : unit(load(strip.q_unit + at)),
        rounding(set1(kRounding) - subtractable(load(strip.max + at))),
        sum(load(strip.sum + at)),
        most(set1(0.0f)),
        lowest(iload(strip.lowest + at)),
        highest(iload(strip.highest + at)) {}

  // The sum of products that score a key.
  TANDEM_INLINE static Vec products_of(const int32_t* products) {
    const __m512i high = _mm512_load_si512(products), middle = _mm512_load_si512(products + 2 * kTileFloats);
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 8), middle));
  }
  // x * times is the log2 of a score's exponential. A cap changes scores.
  struct Score {
    Vec x, times;
  };
  TANDEM_INLINE Score score_of(const int32_t* products, float k_unit) const {
    return {products_of(products), set1(k_unit) * unit};
  }
  TANDEM_INLINE Score capped(const Score& s, float cap) const {
    if (cap <= 0) return s;
    return {set1(cap * kLog2E) * vtanh(s.x * (s.times * set1(1 / (cap * kLog2E)))), set1(1.0f)};
  }
  TANDEM_INLINE Mask sees(int64_t position) const {
    return between(lowest, iset1(static_cast<int32_t>(position)), highest);
  }

  // 2^(x times - max), to 7.5e-5, times what makes up for the bits that later are cut off, on average. NaN gives NaN, values
  // below 2^-120 and hidden ones 0. Our own minimax fit for |r| <= 1 / 2.
  TANDEM_INLINE __m512i weight(const Score& s, Mask seen) {
    const Vec t = fma(s.x, s.times, rounding), r = _mm512_fmsub_ps(s.x, s.times, t - rounding);
    Vec p = set1(0.0553271f);
    p = fma(p, r, set1(0.2432947f));
    p = fma(p, r, set1(0.6952144f));
    p = fma(p, r, set1(1.0027456f));
    most = _mm512_mask_max_ps(most, seen, t, most);
    const Mask counts = _mm512_mask_cmp_ps_mask(seen, t, set1(kRounding - 120), _CMP_NLT_UQ);
    return _mm512_maskz_add_epi32(counts, _mm512_castps_si512(p),
                                  _mm512_slli_epi32(_mm512_castps_si512(t), 23));
  }
  // Two weights as bf16, cut off. The sum is of what is left, so that a position that takes all of the weight is not off by it.
  TANDEM_INLINE __m512i pairs(__m512i even, __m512i odd) {
    const __m512i pairs = _mm512_ternarylogic_epi32(_mm512_set1_epi32(static_cast<int>(0xffff0000u)), odd,
                                                    _mm512_srli_epi32(even, 16), 0xca);
    sum = _mm512_dpbf16_ps(sum, (__m512bh)pairs, (__m512bh)_mm512_set1_epi32(0x3f803f80));
    return pairs;
  }
  template <bool kAdjusted>
  TANDEM_INLINE __m512i weigh(const int32_t* products, const float* k_unit, int64_t position, float cap) {
    const Score even = score_of(products, k_unit[0]), odd = score_of(products + kTile, k_unit[1]);
    if constexpr (kAdjusted) {
      return pairs(weight(capped(even, cap), sees(position)), weight(capped(odd, cap), sees(position + 1)));
    } else {
      return pairs(weight(even, 0xffff), weight(odd, 0xffff));
    }
  }

  bool exceeds() const { return _mm512_cmp_ps_mask(most, set1(kRounding + kMostExcess), _CMP_GT_OQ) != 0; }
};

// Turns the products of a block into weights, those of 2 * kPairs positions a call.
template <int kPairs, bool kAdjusted>
struct Weigh {
  Columns &left, &right;
  const int32_t* products;
  const float* k_unit;
  int64_t position;
  float cap;
  std::byte* to;
  int64_t n_left = kTile;

  TANDEM_INLINE void operator()() {
    if (n_left <= 0) return;
#pragma GCC unroll 2
    for (int i = 0; i < kPairs; ++i) {
      _mm512_store_si512(to, left.template weigh<kAdjusted>(products, k_unit, position, cap));
      _mm512_store_si512(to + kValueStrip,
                         right.template weigh<kAdjusted>(products + kTileFloats, k_unit, position, cap));
      products += 2 * kTile;
      k_unit += 2;
      position += 2;
      to += 64;
    }
    n_left -= 2 * kPairs;
  }
  TANDEM_INLINE void finish() {
    while (n_left > 0) (*this)();
  }
};

// A panel of n positions from `first` on, times strips of queries. Products are computed beside the weights of the block before,
// which for a strip's first block are those of the strip before.
class Panel {
 public:
  Panel(const AttentionCall& call, const Work& w, int64_t first, int64_t n)
      : call_(call), w_(w), first_(first), n_(n), padded_((n + kPair - 1) / kPair * kPair) {}

  void begin(const Strip& strip) const { multiply_alone(strip, 0); }
  // After begin(strip), or with it as `next`.
  void attend(const Strip& strip, const Strip* next) const {
    const bool adjusted = call_.softcap > 0 || !strip.sees_all || n_ % kPair != 0;
    const bool narrow = w_.ld_k == kCodeColumns;
    if (strip.is_new) raise_maximum(strip, strip.new_see_first ? kTile : padded_);
    const auto weigh = adjusted ? &Panel::weigh<1, true>
                       : narrow ? &Panel::weigh<2, false>
                                : &Panel::weigh<1, false>;
    if (!(this->*weigh)(strip, next)) {
      begin(strip);
      raise_maximum(strip, padded_);
      (this->*weigh)(strip, next);
    }
    settle_stores();
    for (int64_t d = 0; d < w_.ld_v / kPair; ++d)
      multiply_values(w_.v + 2 * d * kValueStrip, w_.weights, padded_, strip.acc + 4 * d * kTileFloats);
  }

 private:
  // Weights of all positions, whose first products are there. False, and sums as they were, if weights exceed the maximum by too
  // much.
  template <int kPairs, bool kAdjusted>
  bool weigh(const Strip& strip, const Strip* next) const {
    Columns left(strip, 0), right(strip, kTile);
    for (int64_t p = 0; p < padded_; p += kTile) {
      settle_stores();
      Weigh<kPairs, kAdjusted> weigh{left,       right,         products(p),        w_.k_unit + p,
                                     first_ + p, call_.softcap, w_.weights + p * 32};
      const bool more = p + kTile < padded_;
      if (more || next != nullptr) multiply_block(more ? strip : *next, more ? p + kTile : 0, weigh);
      weigh.finish();
    }
    if (left.exceeds() || right.exceeds()) return false;
    store(strip.sum, left.sum);
    store(strip.sum + kTile, right.sum);
    return true;
  }

  template <class Beside>
  TANDEM_INLINE void multiply_block(const Strip& strip, int64_t p, Beside& beside) const {
    const int64_t codes = w_.code_strip();
    multiply_codes(w_.k + p / kTile * codes, strip.q, codes, products(p), beside);
  }
  void multiply_alone(const Strip& strip, int64_t p) const {
    Nothing nothing;
    multiply_block(strip, p, nothing);
    settle_stores();
  }
  // Of a block; the first one of a panel has the place of the one that would follow the last.
  int32_t* products(int64_t p) const { return w_.products + p / kTile % 2 * 4 * kTileFloats; }

  // Makes the greatest score of the first n positions, rounded up, the maximum where it is greater. Sums become relative to it.
  // The products of the first block are there.
  void raise_maximum(const Strip& strip, int64_t n) const {
    Vec most[2] = {set1(kNothing), set1(kNothing)};
    const Columns columns[2] = {Columns(strip, 0), Columns(strip, kTile)};
    for (int64_t p = 0; p < n; p += kTile) {
      if (p > 0) multiply_alone(strip, p);
      for (int64_t i = 0; i < kTile; ++i) {
        for (int64_t c = 0; c < 2; ++c) {
          const int32_t* sums = products(p) + c * kTileFloats + i * kTile;
          const Columns::Score x =
              columns[c].capped(columns[c].score_of(sums, w_.k_unit[p + i]), call_.softcap);
          most[c] = vmax(select(columns[c].sees(first_ + p + i), x.x * x.times, set1(kNothing)), most[c]);
        }
      }
    }
    if (n > kTile) begin(strip);  // others had its place
    for (int64_t c = 0; c < 2; ++c) {
      const Vec old = load(strip.max + c * kTile);
      const Vec max = vmax(_mm512_roundscale_ps(most[c], _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC), old);
      const Vec factor = times_power_of_2(set1(1.0f), old - subtractable(max));
      store(strip.max + c * kTile, max);
      store(strip.sum + c * kTile, load(strip.sum + c * kTile) * factor);
      for (int64_t d = 0; d < w_.ld_v; ++d) {
        float* row = strip.acc + (d / kTile * 2 + c) * kTileFloats + d % kTile * kTile;
        store(row, load(row) * factor);
      }
    }
  }

  const AttentionCall& call_;
  const Work& w_;
  int64_t first_, n_, padded_;
};

// Whether a strip sees any of positions first .. last, and whether that is all of them, or the first of a query.
bool look(Strip& strip, int64_t first, int64_t last) {
  bool any = false;
  strip.sees_all = true;
  for (int64_t i = 0; i < kPair; ++i) {
    const bool sees = first <= strip.highest[i] && last >= strip.lowest[i];
    any = any || sees;
    strip.sees_all = strip.sees_all && first >= strip.lowest[i] && last <= strip.highest[i];
    if (!sees || strip.max[i] != kNothing) continue;
    strip.is_new = true;
    strip.new_see_first = strip.new_see_first && first >= strip.lowest[i];
  }
  return any;
}

void attend_panels(const AttentionCall& call, const Work& w, const Seen& any) {
  const CacheRows keys = keys_of(call, w), values = values_of(call, w);
  Strip strips[kMaxTileQueries / kPair];
  for (int64_t first = call.kv_begin; first < call.kv_end; first += kPanelRows) {
    const int64_t n = lesser(call.kv_end - first, kPanelRows), last = first + n - 1;
    if (last < any.any_from || first > any.any_to) continue;
    pack_panel(call, keys, values, w, first, n);
    settle_stores();
    const int64_t next = first + n, n_next = lesser(call.kv_end - next, kPanelRows);
    const RowsAhead next_keys{keys, next, n_next},
        next_values{values, next, call.values_in_keys ? 0 : n_next};
    const Panel panel(call, w, first, n);
    int64_t n_strips = 0;
    for (int64_t at = 0; at < w.n_q; at += kPair) {
      strips[n_strips] = w.strip(at);
      if (look(strips[n_strips], first, last)) ++n_strips;
    }
    if (n_strips > 0) panel.begin(strips[0]);
    for (int64_t i = 0; i < n_strips; ++i) {
      next_keys.fetch(i, i + 1, n_strips);
      next_values.fetch(i, i + 1, n_strips);
      panel.attend(strips[i], i + 1 < n_strips ? &strips[i + 1] : nullptr);
    }
  }
}

void store_results(const AttentionCall& call, const Work& w) {
  alignas(64) std::byte tile[kTileBytes];  // [16 queries][16 columns]
  for (int64_t i = 0; i < call.n_queries; i += kTile) {
    const float* acc = w.acc + i / kPair * kPair * w.ld_v + i % kPair * kTile;
    for (int64_t d = 0; d < call.head_dim_v; d += kTile, acc += 2 * kTileFloats) {
      transpose_words(reinterpret_cast<const std::byte*>(acc), tile);
      const auto n_bytes = static_cast<size_t>(lesser(kTile, call.head_dim_v - d)) * sizeof(float);
      for (int64_t j = 0; j < kTile && i + j < call.n_queries; ++j)
        memcpy(call.acc + (i + j) * call.head_dim_v + d, tile + 64 * j, n_bytes);
    }
  }
  for (int64_t i = 0; i < call.n_queries; ++i) {
    call.sum[i] = w.sum[i];
    call.max[i] = w.max[i] * kLn2;
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
  store_results(call, w);
}

}  // namespace

bool takes(const AttentionCall& call) {
  if (takes_code_tiles(call)) return true;
  const bool exact = call.k_dtype == DType::F32 || (!call.values_in_keys && call.v_dtype == DType::F32);
  return call.n_queries >= kLeastQueries && !exact;
}

const AttentionKernels& attention_kernels() {
  static constexpr AttentionKernels table{
      kMaxTileQueries,
      [](const AttentionCall& call) {
        return takes_code_tiles(call) ? code_tiles_scratch_bytes(call) : tiles_scratch_bytes(call);
      },
      [](const AttentionCall& call, std::byte* scratch) {
        takes_code_tiles(call) ? attend_code_tiles(call, scratch) : attend_tiles(call, scratch);
      },
      nullptr,
      takes_code_tile_heads,
      attend_code_tile_heads};
  return table;
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
