// Products of some tokens in 8-bit integers (layouts and floors: linear_bytes.h).
#include "cpu/amx/linear_bytes.h"

#include <cstring>
#include <utility>

#include "base/error.h"
#include "cpu/amx/attention_pack.h"
#include "cpu/amx/linear_bytes_formats.h"
#include "cpu/amx/tiles.h"
#include "cpu/avx512/linear_store.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

constexpr int64_t kSums = 8;  // tiles of sums at a time
constexpr int64_t kTokensAtOnce = 512;

// Of few tokens, strip after strip: the next is fetched meanwhile.
int64_t rows_at_once(int64_t n) {
  return n <= 64 ? kTileRows : 16 * kTileRows;
}

// Parts of a worker's scratch.
struct ByteScratch {
  BytePanel* panel;  // [2]: of few tokens the next chunk is unpacked while one is multiplied
  int32_t* sums;    // [kSums][16 rows][16 tokens]
  std::byte* copy;  // [16 rows][kWidestRow] of the last rows or columns
  float* results;   // [strips][groups][16 rows][16 tokens]

  static constexpr size_t kWidestRow = 64 * 5;
  explicit ByteScratch(std::byte* at)
      : panel(reinterpret_cast<BytePanel*>(at)),
        sums(reinterpret_cast<int32_t*>(panel + 2)),
        copy(reinterpret_cast<std::byte*>(sums + kSums * kTileWords)),
        results(reinterpret_cast<float*>(copy + kTileRows * kWidestRow)) {}
  static size_t bytes(int64_t n) {
    return 2 * sizeof(BytePanel) + kSums * kTileWords * 4 + kTileRows * kWidestRow +
           static_cast<size_t>(min64(kTokensAtOnce, whole(n, kGroupTokens)) * rows_at_once(n)) * sizeof(float);
  }
};

// Products of 16 rows of weights, n_columns of which are a tile, and of as many columns of activations.
constexpr TileConfig byte_config(int n_columns) {
  TileConfig config;
  for (const int weights : {4, 5}) config.row_bytes[weights] = static_cast<uint16_t>(n_columns);
  for (const int activations : {6, 7}) config.rows[activations] = static_cast<uint8_t>(n_columns / 4);
  return config;
}

// Products of n_columns each, of which a panel has some.
template <int n_columns>
struct ByteProducts {
  const BytePanel& panel;
  const std::byte* q;

  // The i-th, in register i % 4. What it reads must have settled.
  template <int i>
  TANDEM_INLINE void multiply() const {
    constexpr int column = i * n_columns;
    const std::byte* weights = &panel.codes[column / 64][0][column % 64];
    const std::byte* activations = q + column * kGroupTokens;
    if constexpr (i % 4 == 0) {
      _tile_zero(0);
      _tile_loadd(4, weights, 64);
      _tile_loadd(6, activations, 64);
      _tile_dpbssd(0, 4, 6);
    } else if constexpr (i % 4 == 1) {
      _tile_zero(1);
      _tile_loadd(5, weights, 64);
      _tile_loadd(7, activations, 64);
      _tile_dpbssd(1, 5, 7);
    } else if constexpr (i % 4 == 2) {
      _tile_zero(2);
      _tile_loadd(4, weights, 64);
      _tile_loadd(6, activations, 64);
      _tile_dpbssd(2, 4, 6);
    } else {
      _tile_zero(3);
      _tile_loadd(5, weights, 64);
      _tile_loadd(7, activations, 64);
      _tile_dpbssd(3, 5, 7);
    }
  }
  template <int i>
  TANDEM_INLINE static void store(int32_t* sums) {
    int32_t* const to = sums + i % kSums * kTileWords;
    if constexpr (i % 4 == 0) {
      _tile_stored(0, to, 64);
    } else if constexpr (i % 4 == 1) {
      _tile_stored(1, to, 64);
    } else if constexpr (i % 4 == 2) {
      _tile_stored(2, to, 64);
    } else {
      _tile_stored(3, to, 64);
    }
  }
};

// results += 256 columns of 16 rows times those of a group.
template <class F>
TANDEM_INLINE void add_chunk(const BytePanel& panel, const std::byte* q, const float* x_scales, const float* x_sums,
                             int32_t* sums, float* results) {
  constexpr int kScales = kChunkColumns / F::sub;  // of a row
  constexpr bool kLate = F::unit == kChunkColumns;  // activations' scales are applied at the end
  __m512 total[kTileRows];
  unroll<kTileRows>([&](auto r) __attribute__((always_inline)) {
    total[r.value] = kLate ? _mm512_setzero_ps() : _mm512_load_ps(results + 16 * r.value);
  });
  const ByteProducts<F::sub> products{panel, q};
  unroll<kScales / kSums>([&](auto turn) __attribute__((always_inline)) {
    constexpr int first = kSums * decltype(turn)::value;
    unroll<kSums / 4>([&](auto four) __attribute__((always_inline)) {
      constexpr int i = first + 4 * decltype(four)::value;
      unroll<4>([&](auto j) __attribute__((always_inline)) { products.template multiply<i + j.value>(); });
      unroll<4>([&](auto j) __attribute__((always_inline)) { products.template store<i + j.value>(sums); });
    });
    settle_stores();
    for (int s = first; s < first + kSums; ++s) {
      const __m512 x = kLate ? _mm512_setzero_ps() : _mm512_load_ps(x_scales + 16 * s);
      __m512 x_sum = _mm512_setzero_ps();
      if constexpr (F::has_mins) {
        static_assert(F::sub == 32);
        x_sum = _mm512_add_ps(_mm512_load_ps(x_sums + 32 * s), _mm512_load_ps(x_sums + 32 * s + 16));
      }
      unroll<kTileRows>([&](auto r) __attribute__((always_inline)) {
        const int at = r.value * kScales + s;
        const __m512 sum =
            _mm512_cvtepi32_ps(_mm512_load_si512(sums + (s - first) * kTileWords + 16 * r.value));
        const __m512 scale = _mm512_set1_ps(panel.scales[at]);
        __m512& to = total[r.value];
        to = _mm512_fmadd_ps(sum, kLate ? scale : _mm512_mul_ps(x, scale), to);
        if constexpr (F::has_mins) to = _mm512_fmadd_ps(x_sum, _mm512_set1_ps(panel.mins[at]), to);
      });
    }
    settle_stores();
  });
  unroll<kTileRows>([&](auto r) __attribute__((always_inline)) {
    float* to = results + 16 * r.value;
    _mm512_store_ps(to, kLate ? _mm512_fmadd_ps(total[r.value], _mm512_load_ps(x_scales), _mm512_load_ps(to))
                              : total[r.value]);
  });
}

// Each of two adjacent numbers in eight lanes.
TANDEM_INLINE __m512 eight_of_each(const float* two) {
  double both;
  std::memcpy(&both, two, sizeof both);
  const __m512i halves = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  return _mm512_permutevar_ps(_mm512_castpd_ps(_mm512_set1_pd(both)), halves);
}

// The same of up to eight tokens in two halves of the lanes (encode_few()). Beside it vectors unpack_four() rows of the next chunk at
// a time, while products are under way, and fetch(i, n) what comes after that, of n parts the i-th, while sums are added.
template <class F, class Beside>
TANDEM_INLINE void add_few(const BytePanel& panel, const std::byte* q, const float* x_scales, const float* x_sums,
                           int32_t* sums, float* results, const Beside& beside) {
  constexpr int kScales = kChunkColumns / F::sub, kPairs = kScales / 2;
  constexpr bool kLate = F::unit == kChunkColumns;
  __m512 total[kTileRows];
  unroll<kTileRows>([&](auto r) __attribute__((always_inline)) {
    total[r.value] = kLate ? _mm512_setzero_ps() : _mm512_load_ps(results + 16 * r.value);
  });
  const ByteProducts<2 * F::sub> products{panel, q};
  const auto add_pair = [&](int p) __attribute__((always_inline)) {
    beside.fetch(p, kPairs);
    const __m512 x = kLate ? _mm512_setzero_ps() : _mm512_load_ps(x_scales + 16 * p);
    const __m512 x_sum = F::has_mins ? _mm512_load_ps(x_sums + 16 * p) : _mm512_setzero_ps();
    unroll<kTileRows>([&](auto r) __attribute__((always_inline)) {
      const int at = r.value * kScales + 2 * p;
      const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums + p * kTileWords + 16 * r.value));
      const __m512 scale = eight_of_each(panel.scales + at);
      __m512& to = total[r.value];
      to = _mm512_fmadd_ps(sum, kLate ? scale : _mm512_mul_ps(x, scale), to);
      if constexpr (F::has_mins) to = _mm512_fmadd_ps(x_sum, eight_of_each(panel.mins + at), to);
    });
  };
  settle_stores();
  unroll<4>([&](auto p) __attribute__((always_inline)) {
    products.template multiply<p.value>();
    beside.template unpack_four<4 * p.value>();
  });
  unroll<kPairs / 4>([&](auto turn) __attribute__((always_inline)) {
    constexpr int p = 4 * decltype(turn)::value;
    if constexpr (p > 0) unroll<4>([&](auto i) __attribute__((always_inline)) { products.template multiply<p + i.value>(); });
    unroll<4>([&](auto i) __attribute__((always_inline)) { products.template store<p + i.value>(sums); });
  });
  settle_stores();
  for (int p = 0; p < kPairs; ++p) add_pair(p);
  unroll<kTileRows>([&](auto r) __attribute__((always_inline)) {
    float* to = results + 16 * r.value;
    _mm512_store_ps(to, kLate ? _mm512_fmadd_ps(total[r.value], _mm512_load_ps(x_scales), _mm512_load_ps(to))
                              : total[r.value]);
  });
}

// Of weights whose scales are in their codes. G tiles of sums: of as many groups, whose codes are `apart`, or two of one group, as a
// product waits for the one that it adds to.
template <int G>
TANDEM_INLINE void multiply_columns(const BytePanel& panel, const std::byte* q, size_t apart, int32_t* sums) {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (G == 4) {
    _tile_zero(2);
    _tile_zero(3);
  }
  unroll<2>([&](auto two) __attribute__((always_inline)) {
    constexpr int p = 2 * decltype(two)::value;
    const std::byte *even = q + 1024 * p, *odd = even + 1024;
    _tile_loadd(4, panel.codes[p], 64);
    _tile_loadd(5, panel.codes[p + 1], 64);
    _tile_loadd(6, even, 64);
    _tile_dpbssd(0, 4, 6);
    if constexpr (G == 1) {
      _tile_loadd(7, odd, 64);
      _tile_dpbssd(1, 5, 7);
    } else {
      _tile_loadd(7, even + apart, 64);
      _tile_dpbssd(1, 4, 7);
      if constexpr (G == 4) {
        _tile_loadd(6, even + 2 * apart, 64);
        _tile_dpbssd(2, 4, 6);
        _tile_loadd(7, even + 3 * apart, 64);
        _tile_dpbssd(3, 4, 7);
      }
      _tile_loadd(6, odd, 64);
      _tile_dpbssd(0, 5, 6);
      _tile_loadd(7, odd + apart, 64);
      _tile_dpbssd(1, 5, 7);
      if constexpr (G == 4) {
        _tile_loadd(6, odd + 2 * apart, 64);
        _tile_dpbssd(2, 5, 6);
        _tile_loadd(7, odd + 3 * apart, 64);
        _tile_dpbssd(3, 5, 7);
      }
    }
  });
  _tile_stored(0, sums, 64);
  _tile_stored(1, sums + kTileWords, 64);
  if constexpr (G == 4) {
    _tile_stored(2, sums + 2 * kTileWords, 64);
    _tile_stored(3, sums + 3 * kTileWords, 64);
  }
  settle_stores();
}

// Of mins and sums, for G groups.
template <int G>
TANDEM_INLINE void multiply_mins(const BytePanel& panel, const std::byte* x_sums, size_t apart, int32_t* sums) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, panel.min_codes, 64);
  _tile_loadd(6, x_sums, 64);
  _tile_dpbusd(0, 4, 6);
  if constexpr (G >= 2) {
    _tile_loadd(7, x_sums + apart, 64);
    _tile_dpbusd(1, 4, 7);
  }
  if constexpr (G == 4) {
    _tile_loadd(6, x_sums + 2 * apart, 64);
    _tile_dpbusd(2, 4, 6);
    _tile_loadd(7, x_sums + 3 * apart, 64);
    _tile_dpbusd(3, 4, 7);
  }
  _tile_stored(0, sums, 64);
  if constexpr (G >= 2) _tile_stored(1, sums + kTileWords, 64);
  if constexpr (G == 4) {
    _tile_stored(2, sums + 2 * kTileWords, 64);
    _tile_stored(3, sums + 3 * kTileWords, 64);
  }
  settle_stores();
}

// results += 256 columns of 16 rows times those of G groups, 1, 2 or 4, whose activations are `apart` bytes from each other.
template <class F, int G>
TANDEM_INLINE void add_folded(const BytePanel& panel, const std::byte* q, size_t apart, const float* x_scales,
                              const std::byte* x_sums, int32_t* sums, float* results) {
  constexpr bool has_mins = F::sums == ByteSums::tiles;
  int32_t* const mins = sums + 4 * kTileWords;
  multiply_columns<G>(panel, q, apart, sums);
  if constexpr (has_mins) multiply_mins<G>(panel, x_sums, apart, mins);
  for (int g = 0; g < G; ++g) {
    const __m512 x = _mm512_load_ps(x_scales + static_cast<size_t>(g) * apart / sizeof(float));
    unroll<kTileRows>([&](auto r) __attribute__((always_inline)) {
      const int at = g * kTileWords + 16 * r.value;
      __m512i sum = _mm512_load_si512(sums + at);
      if constexpr (G == 1) sum = _mm512_add_epi32(sum, _mm512_load_si512(sums + kTileWords + at));
      __m512 total = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(panel.scales[r.value]));
      if constexpr (has_mins) {
        total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(mins + at)), _mm512_set1_ps(panel.mins[r.value]),
                                total);
      }
      _mm512_store_ps(results + at, _mm512_fmadd_ps(total, x, _mm512_load_ps(results + at)));
    });
  }
  settle_stores();
}

// Some strips of 16 rows times some groups of tokens. With many tokens several strips are multiplied with a chunk of columns, so that
// its activations stay in L2, as with bf16. is_few: encoded by encode_few().
template <class F, bool is_few>
class StripProduct {
 public:
  StripProduct(const LinearCall& call, int64_t row0, int64_t row1, int64_t token0, int64_t token1,
               const ByteScratch& scratch)
      : call_(call),
        scratch_(scratch),
        stride_(static_cast<size_t>(call.k / kUnit) * kUnitBytes),
        row0_(row0),
        row1_(row1),
        token1_(token1),
        group0_(token0 / kGroupTokens),
        n_groups_(whole(token1, kGroupTokens) / kGroupTokens - group0_) {}

  void run() const {
    const int64_t n_strips = whole(row1_ - row0_, kTileRows) / kTileRows;
    std::memset(scratch_.results, 0, static_cast<size_t>(n_strips * n_groups_ * kTileWords) * 4);
    if constexpr (is_few) {
      run_few();
    } else {
      run_many();
    }
    store();
  }

 private:
  struct Source {
    const std::byte *strip = nullptr, *rows = nullptr;  // in memory; of the columns, or of a copy
    size_t stride = 0;
  };
  // One strip and one group: each chunk is unpacked while the one before it is multiplied.
  struct NextChunk {
    const StripProduct& strip;
    int64_t column;  // of the one that is multiplied
    BytePanel& panel;
    Source from;

    template <int r>
    TANDEM_INLINE void unpack_four() const {
      if (from.rows) strip.unpack_four(from, r, column + kChunkColumns, panel);
    }
    TANDEM_INLINE void fetch(int i, int n) const { strip.fetch_rest(column, i, n); }
  };
  void run_few() const {
    BytePanel *panel = scratch_.panel, *next = panel + 1;
    unpack(row0_, 0, *panel);
    for (int64_t column = 0; column < call_.k; column += kChunkColumns) {
      const Activations x = activations(0, column);
      const auto* x_sums = reinterpret_cast<const float*>(x.sums);
      const int64_t then = column + kChunkColumns;
      const NextChunk beside{*this, column, *next, then < call_.k ? source(row0_, then) : Source{}};
      add_few<F>(*panel, x.q, x.scales, x_sums, scratch_.sums, scratch_.results, beside);
      std::swap(panel, next);
    }
  }
  void run_many() const {
    for (int64_t column = 0; column < call_.k; column += kChunkColumns) {
      float* results = scratch_.results;
      for (int64_t row = row0_; row < row1_; row += kTileRows, results += n_groups_ * kTileWords) {
        unpack(row, column, *scratch_.panel);
        settle_stores();
        int64_t g = 0;
        if constexpr (F::is_folded) {
          for (; g + 4 <= n_groups_; g += 4) add<4>(g, column, results);
          for (; g + 2 <= n_groups_; g += 2) add<2>(g, column, results);
        }
        for (; g < n_groups_; ++g) add<1>(g, column, results);
      }
    }
  }
  void store() const {
    const float* results = scratch_.results;
    for (int64_t row = row0_; row < row1_; row += kTileRows) {
      for (int64_t g = 0; g < n_groups_; ++g, results += kTileWords) {
        alignas(64) std::byte by_token[kTileWords * 4];
        transpose_words(reinterpret_cast<const std::byte*>(results), by_token);
        if constexpr (is_few) add_halves(reinterpret_cast<float*>(by_token));
        const int64_t token = (group0_ + g) * kGroupTokens;
        store_tile(call_, row, token, min64(kGroupTokens, token1_ - token),
                   reinterpret_cast<const float*>(by_token));
      }
    }
  }

  static constexpr int64_t kUnit = F::unit == kChunkColumns ? kChunkColumns : 32;  // columns of a block of the file
  static constexpr size_t kUnitBytes = F::row_bytes / (kChunkColumns / kUnit);

  TANDEM_INLINE static void add_halves(float* by_token) {
    for (int64_t t = 0; t < kFewTokens; ++t) {
      float *to = by_token + 16 * t, *other = to + 16 * kFewTokens;
      _mm512_store_ps(to, _mm512_add_ps(_mm512_load_ps(to), _mm512_load_ps(other)));
    }
  }

  struct Activations {
    const std::byte* q;
    const float* scales;
    const std::byte* sums;
  };
  TANDEM_INLINE Activations activations(int64_t g, int64_t column) const {
    const ByteLayout layout{F::unit, F::sums, call_.k};
    const std::byte* x = call_.x + static_cast<size_t>(group0_ + g) * layout.group_bytes();
    constexpr int64_t kOfScales = is_few && F::unit < kChunkColumns ? 2 * F::unit : F::unit;
    return {x + static_cast<size_t>(column) * kGroupTokens,
            reinterpret_cast<const float*>(x + layout.scales_at()) + column / kOfScales * kGroupTokens,
            x + layout.sums_at() + static_cast<size_t>(column / kChunkColumns) * ByteLayout::kSumsBytes};
  }

  template <int G>
  TANDEM_INLINE void add(int64_t g, int64_t column, float* results) const {
    const Activations x = activations(g, column);
    const BytePanel& panel = *scratch_.panel;
    results += g * kTileWords;
    if constexpr (F::is_folded) {
      const size_t apart = ByteLayout{F::unit, F::sums, call_.k}.group_bytes();
      add_folded<F, G>(panel, x.q, apart, x.scales, x.sums, scratch_.sums, results);
    } else {
      add_chunk<F>(panel, x.q, x.scales, reinterpret_cast<const float*>(x.sums), scratch_.sums, results);
    }
  }

  // 256 columns of 16 rows. What a strip or row lacks is zero.
  Source source(int64_t row, int64_t column) const {
    const int64_t n_rows = min64(kTileRows, call_.m - row), present = min64(kChunkColumns, call_.k - column);
    const std::byte* const strip = call_.w + static_cast<size_t>(row) * stride_;
    const std::byte* rows = strip + static_cast<size_t>(column / kUnit) * kUnitBytes;
    if (n_rows == kTileRows && present == kChunkColumns) return {strip, rows, stride_};
    std::memset(scratch_.copy, 0, kTileRows * ByteScratch::kWidestRow);
    for (int64_t r = 0; r < n_rows; ++r) {
      std::memcpy(scratch_.copy + static_cast<size_t>(r) * ByteScratch::kWidestRow, rows + static_cast<size_t>(r) * stride_,
                  static_cast<size_t>(present / kUnit) * kUnitBytes);
    }
    return {strip, scratch_.copy, ByteScratch::kWidestRow};
  }
  TANDEM_INLINE void unpack_four(const Source& from, int64_t r, int64_t column, BytePanel& panel) const {
    fetch_ahead(from.strip, r, column);
    F::unpack_four(from.rows, from.stride, r, panel);
  }
  void unpack(int64_t row, int64_t column, BytePanel& panel) const {
    const Source from = source(row, column);
    for (int64_t r = 0; r < kTileRows; r += 4) unpack_four(from, r, column, panel);
  }

  // As much as four rows of 256 columns are. Strip after strip: of the next one, of each quarter in order, so that it is read in four
  // streams; of few tokens half of it here. Of several strips, the same columns of the next one.
  TANDEM_INLINE void fetch_ahead(const std::byte* strip, int64_t r, int64_t column) const {
    const std::byte* next = strip + static_cast<size_t>(kTileRows + r) * stride_;
    if (row1_ - row0_ <= kTileRows) {
      fetch_into_l2(next + of_quarter(column), (is_few ? 2 : 4) * F::row_bytes);
      return;
    }
    next += static_cast<size_t>(column / kUnit) * kUnitBytes;
    for (int64_t i = 0; i < 4; ++i, next += stride_) fetch_into_l2(next, F::row_bytes + 63);
  }
  // The other halves while sums are added up, as a core can wait for few lines at a time.
  TANDEM_INLINE void fetch_rest(int64_t column, int i, int n) const {
    const size_t half = 2 * F::row_bytes, part = half / static_cast<size_t>(n / 4);
    const std::byte* next = call_.w + static_cast<size_t>(row0_ + kTileRows + i % 4 * 4) * stride_;
    fetch_into_l2(next + of_quarter(column) + half + static_cast<size_t>(i / 4) * part, part);
  }
  static constexpr size_t of_quarter(int64_t column) {
    return static_cast<size_t>(column / kChunkColumns) * 4 * F::row_bytes;
  }

  const LinearCall& call_;
  const ByteScratch& scratch_;
  size_t stride_;
  int64_t row0_, row1_, token1_, group0_, n_groups_;
};

template <class F, bool is_few>
void multiply_strips(const LinearCall& call, int64_t row0, int64_t row1, std::byte* room) {
  static constexpr TileConfig kConfig = byte_config(F::is_folded ? 64 : is_few ? 2 * F::sub : F::sub);
  const TileScope tiles(kConfig);
  const ByteScratch scratch(room);
  const int64_t rows = rows_at_once(call.n);
  for (int64_t token = call.token0; token < call.end_token(); token += kTokensAtOnce) {
    const int64_t token1 = min64(token + kTokensAtOnce, call.end_token());
    for (int64_t row = row0; row < row1; row += rows)
      StripProduct<F, is_few>(call, row, min64(row + rows, row1), token, token1, scratch).run();
  }
}

// ---- The table ----

struct ByteFormat {
  int unit;
  ByteSums sums;
  using Multiply = void (*)(const LinearCall& call, int64_t row0, int64_t row1, std::byte* scratch);
  Multiply multiply;
  // Of up to kFewTokens: null, and 0, of a format that has no way of its own for them; else columns of a weight's scale.
  Multiply multiply_few = nullptr;
  int few_sub = 0;

  bool is_few(int64_t n) const { return multiply_few && n <= kFewTokens; }
};
template <class F>
constexpr ByteFormat format_of() {
  if constexpr (F::is_folded) {
    return {F::unit, F::sums, multiply_strips<F, false>};
  } else {
    return {F::unit, F::sums, multiply_strips<F, false>, multiply_strips<F, true>, F::sub};
  }
}
template <class F>
constexpr ByteFormat byte_format_of = format_of<F>();

const ByteFormat* find_byte_format(DType dtype) {
  switch (dtype) {
    case DType::Q2_K: return &byte_format_of<ByteQ2_K>;
    case DType::Q3_K: return &byte_format_of<ByteQ3_K>;
    case DType::Q4_0: return &byte_format_of<ByteQ4_0>;
    case DType::Q8_0: return &byte_format_of<ByteQ8_0>;
    case DType::Q4_K: return &byte_format_of<ByteQ4_K>;
    case DType::Q5_K: return &byte_format_of<ByteQ5_K>;
    case DType::Q6_K: return &byte_format_of<ByteQ6_K>;
    default: return nullptr;
  }
}
const ByteFormat& byte_format(DType dtype) {
  const ByteFormat* found = find_byte_format(dtype);
  TANDEM_CHECK(found != nullptr);
  return *found;
}

bool has_byte_kernel(DType dtype) {
  return find_byte_format(dtype) != nullptr;
}
size_t byte_encoded_bytes(DType dtype, int64_t n, int64_t k) {
  const ByteFormat& f = byte_format(dtype);
  return ByteLayout{f.unit, f.sums, k}.group_bytes() *
         static_cast<size_t>(whole(n, kGroupTokens) / kGroupTokens);
}
bool same_byte_encoding(DType a, DType b, int64_t n) {
  const ByteFormat &f = byte_format(a), &g = byte_format(b);
  return f.unit == g.unit && f.sums == g.sums && (n > kFewTokens || f.few_sub == g.few_sub);
}
int64_t byte_encode_granularity(DType, int64_t) {
  return kGroupTokens;
}

void byte_encode(DType dtype, const float* x, int64_t ldx, int64_t n, int64_t k, int64_t token0, int64_t token1,
                std::byte* encoded) {
  const ByteFormat& f = byte_format(dtype);
  const ByteLayout layout{f.unit, f.sums, k};
  if (f.is_few(n)) return encode_few_bytes(layout, f.few_sub, x, ldx, n, encoded);
  for (int64_t t = token0; t < token1; t += kGroupTokens) {
    encode_byte_group(layout, x + t * ldx, ldx, min64(kGroupTokens, n - t),
                      encoded + static_cast<size_t>(t / kGroupTokens) * layout.group_bytes());
  }
}

int64_t byte_row_granularity(DType, int64_t, int64_t, int64_t) {
  return kTileRows;
}
size_t byte_scratch_bytes(DType, int64_t n, int64_t) {
  return ByteScratch::bytes(n);
}
void byte_multiply(const LinearCall& call, int64_t row0, int64_t row1, std::byte* scratch) {
  const ByteFormat& f = byte_format(call.dtype);
  (f.is_few(call.n) ? f.multiply_few : f.multiply)(call, row0, row1, scratch);
}

}  // namespace

// As measured with two cores of an Emerald Rapids, 5632 x 2048, 4096 x 4096 and others, medians of alternating products. Groups of 16
// tokens cost about as much as tiles of up to 12 of VNNI, so that they pay where they are fewer. Up to eight tokens go row by row there,
// which only formats with a way of their own for so few overtake, and only with eight. How much faster than VNNI, at worst and at best:
//            5 tokens    7           8           10          16          24          32
//   Q4_0     0.66, 0.90  0.82, 1.18  0.90, 1.27  0.80, 1.10  1.16, 1.50  0.95, 1.14  1.22, 1.46
//   Q4_K     0.69        0.78, 1.12  0.89, 1.22  0.83, 1.05  1.28, 1.43  0.82, 1.09  0.96, 1.41
//   Q5_K     0.70, 0.96  0.83, 1.13  0.87, 1.12  0.69, 0.90  1.03, 1.31  0.81, 1.02  1.22, 1.43
//   Q6_K     0.48        0.61, 0.95  0.67, 1.00  0.60, 0.79  0.98, 1.18  0.79, 0.92  0.98, 1.14
//   Q8_0     0.89        0.92, 1.20  1.05, 1.24  0.71, 0.88  1.01, 1.18  0.79, 0.96  0.98, 1.24
bool takes_bytes(DType dtype, int64_t n) {
  const bool fewer = (n >= 13 && n <= 16) || (n >= 25 && n <= 32) || n >= 37;
  switch (dtype) {
    case DType::Q3_K: return n >= 7;
    case DType::Q2_K: return n >= 6;
    case DType::Q4_0:
    case DType::Q4_K:
    case DType::Q5_K: return n == kFewTokens || fewer;
    case DType::Q8_0: return n == 7 || n == kFewTokens || fewer;
    case DType::Q6_K: return fewer && n <= 32;
    default: return false;
  }
}

const LinearKernels& byte_linear_kernels() {
  static constexpr LinearKernels table{has_byte_kernel,         byte_encoded_bytes, same_byte_encoding,
                                       byte_encode_granularity, byte_encode,        byte_row_granularity,
                                       byte_scratch_bytes,      byte_multiply};
  return table;
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
