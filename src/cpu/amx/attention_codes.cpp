// Attention of few queries (decode) over a cache of Q8_0 or Q4_0 on tiles of bytes: as avx512/attention_codes.h has it, with the
// same codes of 16 bits on the other side, whose two bytes are rows or columns of a tile.
//
// Keys are the left factor, 16 positions of 32 columns, as they are in the cache: no transposition. The right factor has 4 columns
// of a query's byte in a word. A sum's row is a position; it takes the position's scale and the queries' and is added to those of the
// other blocks of columns in registers. After the last one, the rows become the queries' scores.
// Values are the right factor: bytes of 4 positions are interleaved once for all queries, 16 columns to a tile. The left factor has
// a query's byte of a panel's weights in a row.
// Codes have signs here, so nothing has a bias.
//
// Of a panel, a block of columns and eight queries, in cycles, each measured alone (Granite Rapids, 3.7 GHz): keys 4 times 20 to load
// a tile of rows that are not whole lines, 18 to multiply, 16 to store the sums, together 33, and 24 for 48 operations of vectors, of
// which tiles hide half; values 75 to interleave, 8 times 20 for the codes of the weights, 2 times 42 to load, multiply and store.
// Reached, GB/s of a core that reads 14 to 16 with plain loads, all heads together from memory, heads of 64 and 128 columns, beside
// the kernels of avx512/: eight queries of Q8_0 7.6 and 8.8, where those read 6.6 and 7.2. With one scale of a query for all its blocks
// of columns, which was less exact: from memory 7.8 and 8.8; from the L2, heads of 64 columns, 8.7 to 9.6 where those read 7.9, of Q4_0
// 4.9 and 4.2; twelve queries 5.8, sixteen 4.9, where floats (simd/attention.h) read 3.8 and 3.6. Four queries were no faster than in
// vectors, with tiles of four 13.1 and 13.3, Q4_0 6.1 and 7.2.
#include "cpu/avx512/vec.h"  // first: the rest is written in its vectors

#include "cpu/amx/attention_codes.h"
#include "cpu/amx/tiles.h"
#include "cpu/avx512/attention_formats.h"
#include "cpu/avx512/weight_codes.h"
#include "cpu/simd/attention_code_heads.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

constexpr int64_t kLeastCodeQueries = 5;  // from here on faster than the kernels of avx512/
constexpr int64_t kTileQueries = 8;       // of a tile; each has two bytes
constexpr int64_t kTileBytes = 1024;

// Registers 0, 1: sums of keys; 2: keys; 3: queries; 4: weights; 5: values; 6, 7: sums of values.
struct CodeTiles : TileConfig {
  CodeTiles() {
    row_bytes[2] = QK;
    rows[3] = QK / 4;
  }
};

// Q8_0 with its sign.
struct ByteCodes : CodesBytes<0> {
  // 16 rows of 32 bytes, where they are.
  TANDEM_INLINE static void load_keys(const std::byte* block, size_t row_bytes, std::byte*) {
    _tile_loadd(2, block + offsetof(BlockQ8_0, qs), row_bytes);
  }
};
struct NibbleCodes : CodesQ4 {
  // Two rows at a time, made bytes.
  TANDEM_INLINE static void load_keys(const std::byte* block, size_t row_bytes, std::byte* to) {
    const __m512i shifts = _mm512_maskz_set1_epi64(0xcc, 4);
    const __m512i mask = _mm512_set1_epi8(15), bias = _mm512_set1_epi8(kBias);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2, block += 2 * row_bytes) {
      const auto row = [&](int r) {
        const std::byte* from = block + static_cast<size_t>(r) * row_bytes + offsetof(BlockQ4_0, qs);
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
      };
      const __m512i both = _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(row(0)), 0xff00, row(1));
      const __m512i codes = _mm512_and_si512(_mm512_srlv_epi64(both, shifts), mask);
      _mm512_store_si512(to + i * QK, _mm512_sub_epi8(codes, bias));
    }
    settle_stores();
    _tile_loadd(2, to, QK);
  }
};

// Eight queries as a tile takes them: of each block of columns [8][high, low][8] words of 4 columns; then [high, low][8] scales, 256
// times as large for the high bytes.
struct QueryTiles {
  static constexpr int64_t kWordBytes = QK * 2 * kTileQueries, kBytes = kWordBytes + 2 * kTileQueries * 4;
  static_assert(kBytes == query_bytes(kTileQueries));

  std::byte* first;
  int64_t n_blocks;

  std::byte* words(int64_t b) const { return first + b * kBytes; }
  float* scales(int64_t b) const { return reinterpret_cast<float*>(words(b) + kWordBytes); }

  void encode(const float* const* queries, int64_t n, float scale) const {
    memset(first, 0, static_cast<size_t>(n_blocks * kBytes));
    for (int64_t q = 0; q < n; ++q) {
      for (int64_t b = 0; b < n_blocks; ++b) {
        const float* from = queries[q] + b * QK;
        const float of_codes = scale_of_codes(from, scale);
        const QueryCodes codes(from, scale, set1(finite_inverse(of_codes)));
        scales(b)[q] = 256 * of_codes;
        scales(b)[kTileQueries + q] = of_codes;
        alignas(16) std::byte bytes[2][QK];
        for (int h = 0; h < 2; ++h) {
          _mm_store_si128(reinterpret_cast<__m128i*>(bytes[0] + 16 * h), codes.high[h]);
          _mm_store_si128(reinterpret_cast<__m128i*>(bytes[1] + 16 * h), codes.low[h]);
        }
        for (int64_t part = 0; part < 2; ++part) {
          for (int64_t j = 0; j < QK / 4; ++j)
            memcpy(words(b) + 4 * ((2 * j + part) * kTileQueries + q), bytes[part] + 4 * j, 4);
        }
      }
    }
  }
};
QueryTiles tiles_of(const CodeWork& w, int64_t first_query) {
  return {w.q + first_query / kTileQueries * w.blocks_k * query_bytes(kTileQueries), w.blocks_k};
}

// The scores of 16 positions, as rows [16][high, low][8] of sums come.
struct ScoreRows {
  Vec sums[kGroup];

  TANDEM_INLINE void clear() {
#pragma GCC unroll 16
    for (Vec& v : sums) v = set1(0.0f);
  }
  // Adds a block's products.
  TANDEM_INLINE void add(const int32_t* products, const fp16_t* key_scales, const float* query_scales) {
    alignas(64) float scales[kGroup];
    store(scales, load_f16(key_scales));
    const Vec of_queries = load(query_scales);
#pragma GCC unroll 16
    for (int i = 0; i < kGroup; ++i) {
      const Vec x = _mm512_cvtepi32_ps(_mm512_load_si512(products + i * kLanes));
      sums[i] = fma(x, set1(scales[i]) * of_queries, sums[i]);
    }
  }
  // To s[query][position], with kPanel positions.
  TANDEM_INLINE void store_scores(float* s, int64_t n_queries) const {
    // Halves: eight queries of positions i and 8 + i. Then, of positions 4 * h on, quarters: query k and query 4 + k.
    __m512i to[2][4];
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      __m512i z[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const Vec a = sums[4 * h + i], b = sums[8 + 4 * h + i];
        const Vec high = _mm512_shuffle_f32x4(a, b, 0x44), low = _mm512_shuffle_f32x4(a, b, 0xee);
        z[i] = _mm512_castps_si512(high + low);
      }
      CodesBytes<0>::transpose_lanes(z, to[h]);
    }
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13), second = _mm512_add_epi64(first, _mm512_set1_epi64(2));
    const auto put = [&](int64_t q, __m512i x) {
      if (q < n_queries) store(s + q * kPanel, _mm512_castsi512_ps(x));
    };
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      put(k, _mm512_permutex2var_epi64(to[0][k], first, to[1][k]));
      put(4 + k, _mm512_permutex2var_epi64(to[0][k], second, to[1][k]));
    }
  }
};

// WeightCodes of four queries, kPanel bytes of each: their greatest weights are found together, and one division serves all.
TANDEM_INLINE void encode_four(const float* weights, const Vec (&scales)[kGroups], std::byte* high, std::byte* low,
                               float* of_codes) {
  Vec x[4][kGroups];
  __m512i most[4];
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) {
#pragma GCC unroll 4
    for (int64_t i = 0; i < kGroups; ++i) {
      x[q][i] = load(weights + q * kPanel + i * kGroup) * scales[i];
      most[q] = i == 0 ? magnitude_bits(x[q][i]) : _mm512_max_epu32(most[q], magnitude_bits(x[q][i]));
    }
  }
  const __m512i a = _mm512_max_epu32(_mm512_unpacklo_epi32(most[0], most[1]), _mm512_unpackhi_epi32(most[0], most[1]));
  const __m512i b = _mm512_max_epu32(_mm512_unpacklo_epi32(most[2], most[3]), _mm512_unpackhi_epi32(most[2], most[3]));
  const __m512i c = _mm512_max_epu32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  const __m256i d = _mm256_max_epu32(_mm512_castsi512_si256(c), _mm512_extracti64x4_epi64(c, 1));
  const __m128 max = _mm_castsi128_ps(_mm_max_epu32(_mm256_castsi256_si128(d), _mm256_extracti128_si256(d, 1)));
  const __m128 scale = _mm_mul_ps(max, _mm_set1_ps(1 / kMaxCode));
  // As finite_inverse().
  const __m128 inverse = _mm_div_ps(_mm_set1_ps(1.0f), scale);
  const __m128 size = _mm_and_ps(inverse, _mm_castsi128_ps(_mm_set1_epi32(0x7fffffff)));
  const __mmask8 finite = _mm_cmp_ps_mask(size, _mm_set1_ps(__builtin_inff()), _CMP_LT_OQ);
  alignas(16) float inverses[4];
  _mm_store_ps(inverses, _mm_maskz_mov_ps(finite, inverse));
  _mm_storeu_ps(of_codes, scale);
  const __m512i half = _mm512_set1_epi16(128), low_byte = _mm512_set1_epi16(255);
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) {
    const Vec factor = set1(inverses[q]);
    __m512i codes[kGroups], highs[2], lows[2];
#pragma GCC unroll 4
    for (int64_t i = 0; i < kGroups; ++i) codes[i] = _mm512_cvtps_epi32(x[q][i] * factor);
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m512i words = _mm512_packs_epi32(codes[2 * i], codes[2 * i + 1]);
      highs[i] = _mm512_srai_epi16(_mm512_add_epi16(words, half), 8);
      lows[i] = _mm512_and_si512(words, low_byte);
    }
    _mm512_store_si512(high + q * kPanel, _mm512_packs_epi16(highs[0], highs[1]));
    _mm512_store_si512(low + q * kPanel, _mm512_packus_epi16(lows[0], lows[1]));
  }
}

// Products of eight queries with 16 positions and a block of columns, all of a panel one after the other. The sums of one are stored
// when the next is under way, because a store waits for them and what comes behind it for the store.
template <class Codes>
class KeyTiles {
 public:
  KeyTiles(const CodeWork& w, const CodeRows& keys, const CodesAhead& ahead, int64_t first_query, int64_t n_queries)
      : w_(w),
        keys_(keys),
        ahead_(ahead),
        scales_{keys, w.blocks_k, Codes::kBytes, w.k_scales},
        queries_(tiles_of(w, first_query)),
        is_first_(first_query == 0),
        s_(w.s + first_query * kPanel),
        n_(lesser(n_queries - first_query, kTileQueries)) {}

  void dot() {
    const int64_t n = keys_.n_groups * w_.blocks_k;
    settle_stores();
    scores_.clear();
    multiply<0>();
    for (int64_t i = 0; i < n; i += 2) {
      if (i + 1 < n) multiply<1>();
      add<0>();
      if (i + 1 == n) break;
      if (i + 2 < n) multiply<0>();
      add<1>();
    }
    for (int64_t g = keys_.n_groups; g < kGroups; ++g) {
      for (int64_t q = 0; q < n_; ++q) store(s_ + q * kPanel + g * kGroup, set1(0.0f));
    }
  }

 private:
  struct Place {
    int64_t group = 0, block = 0;

    TANDEM_INLINE void step(int64_t n_blocks) {
      if (++block == n_blocks) {
        block = 0;
        ++group;
      }
    }
  };

  template <int kTurn>
  TANDEM_INLINE void multiply() {
    const auto [g, b] = multiplied_;
    if (is_first_) ahead_.fetch_part<Codes::kBytes>(g, b);
    _tile_loadd(3, queries_.words(b), 64);
    Codes::load_keys(keys_.groups[g] + static_cast<size_t>(b) * Codes::kBytes, keys_.row_bytes, rows_[kTurn]);
    if constexpr (kTurn == 0) {
      _tile_zero(0);
      _tile_dpbssd(0, 2, 3);
    } else {
      _tile_zero(1);
      _tile_dpbssd(1, 2, 3);
    }
    if (is_first_) scales_.copy_block(g, b);
    multiplied_.step(w_.blocks_k);
  }
  template <int kTurn>
  TANDEM_INLINE void add() {
    const auto [g, b] = added_;
    if constexpr (kTurn == 0) {
      _tile_stored(0, products_[0], 64);
    } else {
      _tile_stored(1, products_[1], 64);
    }
    scores_.add(products_[kTurn], w_.k_scales + b * kPanel + g * kGroup, queries_.scales(b));
    added_.step(w_.blocks_k);
    if (added_.block != 0) return;
    scores_.store_scores(s_ + g * kGroup, n_);
    scores_.clear();
  }

  const CodeWork& w_;
  const CodeRows& keys_;
  const CodesAhead& ahead_;
  const Scales scales_;
  const QueryTiles queries_;
  const bool is_first_;  // of the panel: fetches, and copies the scales
  float* const s_;
  const int64_t n_;
  Place multiplied_, added_;
  ScoreRows scores_;
  alignas(64) int32_t products_[2][kTileBytes / 4];
  alignas(64) std::byte rows_[2][kGroup * QK];
};

// acc = acc * factor + weights times values, a block of columns after the other.
template <class Codes>
class ValueTiles {
 public:
  ValueTiles(const CodeWork& w, const CodeRows& values, const CodesAhead& ahead, const AttentionCall& call)
      : w_(w),
        values_(values),
        ahead_(ahead),
        call_(call),
        scales_{values, w.blocks_v, Codes::kBytes, w.v_scales},
        n_tiles_((call.n_queries + kTileQueries - 1) / kTileQueries) {}

  void update() {
    const bool whole = values_.n == kPanel;
    if (!whole) memset(rows_, 0, sizeof rows_);
    if (whole) {
      for (int64_t g = 0; g < kGroups; ++g) scales_.copy_block(g, 0);
    } else {
      scales_.copy_panel();
    }
    // Tiles are loaded a while after their rows are stored.
    const int64_t n = w_.blocks_v;
    for (int64_t b = 0; b <= n; ++b) {
      if (b < n) {
        encode_weights(b);
        interleave(b, whole && b + 1 < n);
      }
      if (b == 0) continue;
      for (int64_t tile = 0; tile < n_tiles_; ++tile) multiply(b - 1, tile);
    }
  }

 private:
  struct Weights {
    alignas(64) std::byte codes[2 * kTileQueries * kPanel];  // [high, low][8]
    float scales[kTileQueries];
  };

  TANDEM_INLINE void encode_weights(int64_t b) {
    Vec scales[kGroups];
#pragma GCC unroll 4
    for (int64_t i = 0; i < kGroups; ++i) scales[i] = load_f16(w_.v_scales + b * kPanel + i * kGroup);
    for (int64_t q = 0; q < call_.n_queries; q += 4) {
      Weights& to = weights_[b % 2][q / kTileQueries];
      std::byte* high = to.codes + q % kTileQueries * kPanel;
      encode_four(w_.s + q * kPanel, scales, high, high + kTileQueries * kPanel, to.scales + q % kTileQueries);
    }
  }
  // `copies`: the scales of the next block, too.
  TANDEM_INLINE void interleave(int64_t b, bool copies) {
    for (int64_t g = 0; g < values_.n_groups; ++g) {
      ahead_.fetch_part<Codes::kBytes>(g, b);
      if (copies) scales_.copy_block(g, b + 1);
      const std::byte* block = values_.groups[g] + static_cast<size_t>(b) * Codes::kBytes;
#pragma GCC unroll 2
      for (int64_t half = 0; half < 2; ++half, block += 8 * values_.row_bytes) {
        __m512i v[2][2];
        Codes::values(block, values_.row_bytes, v);
#pragma GCC unroll 2
        for (int64_t t = 0; t < 2; ++t) {
          std::byte* to = rows_[b % 2] + 64 * WeightCodes::at(4 * g + 2 * half + t);
          _mm512_store_si512(to, with_sign(v[t][0]));
          _mm512_store_si512(to + kTileBytes, with_sign(v[t][1]));
        }
      }
    }
  }
  TANDEM_INLINE static __m512i with_sign(__m512i codes) {
    return Codes::kBias == 0 ? codes : _mm512_sub_epi8(codes, _mm512_set1_epi8(Codes::kBias));
  }

  // A block and eight queries.
  TANDEM_INLINE void multiply(int64_t b, int64_t tile) {
    const Weights& weights = weights_[b % 2][tile];
    const std::byte* rows = rows_[b % 2];
    settle_stores();
    _tile_loadd(4, weights.codes, kPanel);
    _tile_loadd(5, rows, 64);
    _tile_zero(6);
    _tile_dpbssd(6, 4, 5);
    _tile_loadd(5, rows + kTileBytes, 64);
    _tile_zero(7);
    _tile_dpbssd(7, 4, 5);
    _tile_stored(6, sums_[0], 64);
    _tile_stored(7, sums_[1], 64);
    const int64_t first = tile * kTileQueries, n = lesser(call_.n_queries - first, kTileQueries);
    for (int64_t q = 0; q < n; ++q) {
      const auto sum = [&](int half) {
        return join(_mm512_load_si512(sums_[half] + q * kLanes), _mm512_load_si512(sums_[half] + (kTileQueries + q) * kLanes));
      };
      Vec x0 = sum(0), x1 = sum(1);
      Codes::put_in_order(x0, x1);
      const Vec scale = set1(weights.scales[q]), factor = set1(w_.factor[first + q]);
      float* y = call_.acc + (first + q) * call_.head_dim_v + b * QK;
      store(y, fma(x0, scale, load(y) * factor));
      store(y + kLanes, fma(x1, scale, load(y + kLanes) * factor));
    }
  }

  const CodeWork& w_;
  const CodeRows& values_;
  const CodesAhead& ahead_;
  const AttentionCall& call_;
  const Scales scales_;
  const int64_t n_tiles_;
  // Of two blocks of columns: one is prepared, the one before it multiplied.
  alignas(64) std::byte rows_[2][2 * kTileBytes];  // two tiles of [16 times 4 positions][16 columns][4]
  Weights weights_[2][kCodeQueries / kTileQueries];
  alignas(64) int32_t sums_[2][kTileBytes / 4];  // [high, low][8][16 columns] each
};

template <class Codes>
void dot_codes(const CodeWork& w, const CodeRows& keys, const CodesAhead& ahead, int64_t n_queries) {
  for (int64_t q = 0; q < n_queries; q += kTileQueries) KeyTiles<Codes>(w, keys, ahead, q, n_queries).dot();
}
template <class Codes>
void update_codes(const CodeWork& w, const CodeRows& values, const CodesAhead& ahead, const AttentionCall& call) {
  ValueTiles<Codes>(w, values, ahead, call).update();
}

template <class Codes>
constexpr CodeFns kCodeFns{0, Codes::kBytes, dot_codes<Codes>, update_codes<Codes>};

CodeFns code_fns(DType dtype) {
  return dtype == DType::Q8_0 ? kCodeFns<ByteCodes> : dtype == DType::Q4_0 ? kCodeFns<NibbleCodes> : CodeFns{};
}

void encode_queries(const AttentionCall& call, const CodeWork& w, const CodeFns&) {
  for (int64_t q = 0; q < call.n_queries; q += kTileQueries)
    tiles_of(w, q).encode(call.q + q, lesser(call.n_queries - q, kTileQueries), call.scale);
}

const TileConfig& code_tiles() {
  static const CodeTiles tiles;
  return tiles;
}

}  // namespace

bool takes_code_tiles(const AttentionCall& call) {
  return call.n_queries >= kLeastCodeQueries && takes_codes(call);
}
size_t code_tiles_scratch_bytes(const AttentionCall& call) {
  return CodeWork(call, nullptr).bytes;
}
void attend_code_tiles(const AttentionCall& call, std::byte* scratch) {
  const TileScope tiles(code_tiles());
  attend_codes(call, scratch);
}

bool takes_code_tile_heads(const AttentionCall& call) {
  return takes_code_tiles(call) && takes_code_heads(call);
}
void attend_code_tile_heads(const AttentionCall* calls, int64_t n, std::byte* scratch) {
  const TileScope tiles(code_tiles());
  attend_code_heads(calls, n, scratch);
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
