// Products with F32, F16 and BF16 weights.
//
// Up to DotWay::most_tokens tokens: dot products with F32 activations, in order through the weights; floor: weight bytes / memory
// bandwidth, or of many tokens one FMA for 16 columns and token (conversions are shared by four tokens). Of four rows at a time,
// so that activations are loaded once for four, but for one token whose activations stay in L1: one row after the other is a single
// stream, which the caches' own prefetching follows (F16 on two cores of a Zen 5: 40 GB/s, side by side 37). The rows can
// be of a stream each (linear_simd.h), and six of many tokens, as DotWay says. More:
// panels as for the quantized types, F32 [k][16 rows], 2 strips x 12 tokens (8 without VNNI) of FMAs: 64 flop a cycle and
// port. BF16 is no exception: vdpbf16ps takes two columns at a time but, measured on Sapphire Rapids, runs
// once in two cycles where two FMAs run in each, so it would be slower and round the activations.
#include <cstring>
#include <utility>

#include "cpu/avx512/linear_layout.h"
#include "cpu/avx512/linear_simd.h"
#include "cpu/avx512/linear_store.h"
#include "cpu/avx512/linear_strip.h"
#include "cpu/simd/fetch.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

constexpr int64_t kDotGroup = 4;  // tokens at a time; a row stays in L1 for all of them
constexpr int64_t kDotRows = 4;
constexpr int64_t kManyDotRows = 6;
// Of a single row where it is fetched into L1: the 48 KB of a Zen 5. Others fetch into L2 (linear_simd.h); into the 32 KB of a
// Zen 4 it took 16% longer with two threads and 60% with one.
constexpr size_t kSingleAheadBytes = 12 << 10;
constexpr int64_t kSingleColumns = 8192;  // at most, for rows one after the other

// How a kind of CPU makes dot products.
struct DotWay {
  int64_t most_tokens;      // more: panels
  bool one_in_streams;      // whether the rows of one token are of several streams
  bool several_in_streams;  // likewise of more tokens
  int64_t many_rows;        // of a stream each, of more than two groups of tokens
  size_t l2_ahead;          // how far a stream is fetched into the L2; 0: not by instructions
  size_t l1_ahead;          // and into the L1
};
// l1_ahead: an Emerald Rapids, k 2048 to 14336; a core that read halves at 14.3 GB/s when they were fetched into the L2 alone reads
// 15.8 to 16.1 so (one token; 5 to 26% more with two, 3 to 10% with four). 0.5 to 1.5 KB into the L1 and 1.5 to 4 into the L2 are alike.
constexpr DotWay kIntelWay{12, true, true, kDotRows, kAheadInL2, kAheadInL1};
// A Zen 4, where vectors of 64 bytes take two cycles.
// most_tokens: dot products, which convert beside the multipliers, reach their peak: with 32 tokens a core made 115 Gop/s of the 114 to
// 117 that registers alone did, and 93 to 96 with panels.
// l1_ahead: as far as the L2 is away, which its own prefetching keeps full. The activations of one token, four bytes for two of weights,
// push each other out of an L1 of 32 KB, and what is fetched from memory into the L2 by instructions waits for the same few lines. A core
// whose plain loads read 34 GB/s reads F16 so at 31, 25, 23 and 25 GB/s with rows of 2048, 4096, 5632 and 8192; row by row, fetched 8 KB
// ahead, at 23, 23, 19 and 15.
constexpr DotWay kNarrowWay{48, true, false, kDotRows, 0, 256};
// A Zen 5, and others; F16 of tinyllama or with rows as long.
// most_tokens: a core whose peak is 268 Gop/s makes with 16 tokens 170 to 190 by dot products and 130 to 137 with panels, with 32 200 and
// 180, with 48 208 and 200; two cores with 48 were 2% slower.
// several_in_streams: two cores whose plain loads read 53 GB/s take for a step of two, four and eight tokens 53, 55 and 74 ms by four
// adjacent rows and 48, 51 and 62 so; fetched 1 KB ahead as long, but with one core 7% longer; into the L2 51, 52 and 66. One token is
// faster row by row (33 and 22 tokens/s where memory is fast).
// many_rows: activations come from the L2 for every few rows. On one core 12 and 24 tokens are 5 to 28% faster than by four rows, on two
// cores 5 to 7 tokens would be 3% slower.
constexpr DotWay kWideWay{40, false, true, kManyDotRows, 0, 1536};
static_assert(kNarrowWay.most_tokens < kDividedTokens && kWideWay.most_tokens < kDividedTokens);

TANDEM_INLINE const DotWay& dot_way() {
  return narrow_avx512() ? kNarrowWay : reads_in_streams() ? kIntelWay : kWideWay;
}

constexpr int kPairStrips = 2;            // strips of one tile kernel
constexpr int64_t kSpan = 64;             // columns interleaved at a time

constexpr int64_t padded(int64_t k) {
  return (k + 7) & ~int64_t{7};
}

template <DType dtype>
constexpr size_t sizeof_element = dtype == DType::F32 ? 4 : 2;

// ---- dot products ----

template <DType dtype>
TANDEM_INLINE __m512 load_weights(const std::byte* w, int64_t i, __mmask16 mask) {
  if constexpr (dtype == DType::F32)
    return _mm512_maskz_loadu_ps(mask, reinterpret_cast<const float*>(w) + i);
  const __m256i halves = _mm256_maskz_loadu_epi16(mask, w + 2 * i);
  if constexpr (dtype == DType::F16) return _mm512_cvtph_ps(halves);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// R rows, r and each `apart` on, with T tokens from token0. Rows that are apart are streams.
template <DType dtype, int R, int T>
void dot_rows(const LinearCall& call, int64_t r, int64_t apart, int64_t token0) {
  constexpr int64_t kSize = static_cast<int64_t>(sizeof_element<dtype>);
  // Sums in parallel, as an addition waits for the one before. The same for any number of rows, so that results are. (Four were as
  // fast for one row; only Intel has been measured with two.)
  constexpr int kChains = T == 1 ? 2 : 1;
  // A cache line of each row at a time, or as many as there are sums.
  constexpr int64_t kStep = T == 1 ? 16 * kChains : 64 / kSize, kStepBytes = kStep * kSize;
  const size_t stride = static_cast<size_t>(call.k * kSize);
  const size_t row_stride = static_cast<size_t>(apart) * stride;
  const std::byte* w = call.w + static_cast<size_t>(r) * stride;
  const float* x = reinterpret_cast<const float*>(call.x) + token0 * call.k;
  __m512 sum[kChains][R * T];
  unroll<kChains * R * T>([&](auto i) __attribute__((always_inline)) {
    sum[i.value / (R * T)][i.value % (R * T)] = _mm512_setzero_ps();
  });
  const auto step = [&](auto chain, int64_t at, __mmask16 mask) __attribute__((always_inline)) {
    __m512 xs[T];
    unroll<T>([&](auto t) __attribute__((always_inline)) {
      xs[t.value] = _mm512_maskz_loadu_ps(mask, x + t.value * call.k + at);
    });
    unroll<R>([&](auto row) __attribute__((always_inline)) {
      const __m512 ws = load_weights<dtype>(w + row.value * row_stride, at, mask);
      unroll<T>([&](auto t) __attribute__((always_inline)) {
        __m512& s = sum[chain.value][row.value * T + t.value];
        s = _mm512_fmadd_ps(ws, xs[t.value], s);
      });
    });
  };
  const bool into_l2 = __builtin_cpu_is("intel") || fetches_into_l2();
  const size_t l1_ahead_of_stream = dot_way().l1_ahead, l2_ahead_of_stream = dot_way().l2_ahead;
  const size_t l2_ahead = ahead_into_l2();
  // Prefetches what one row or stream needs some KB further; of several the rows behind them, in the order of memory, and of more than one
  // group of tokens a part with each. With four lines of as many rows, each some further, a core of a Zen 4 read F16 at 16 GB/s for
  // four tokens and at 10.5 for eight, where it now reads 24 and 13.5. Other CPUs have not been measured.
  const auto n_groups = static_cast<size_t>((call.end_token() - call.token0 + kDotGroup - 1) / kDotGroup);
  const size_t ahead_bytes = R * kStepBytes / n_groups;  // a step
  const std::byte* ahead =
      w + R * stride + static_cast<size_t>((token0 - call.token0) / kDotGroup) * (R * stride / n_groups);
  const auto fetch = [&](int64_t from) __attribute__((always_inline)) {
    const size_t at = static_cast<size_t>(from * kSize);
    if constexpr (R * T == 1) {
      unroll<kStepBytes / 64>([&](auto line) __attribute__((always_inline)) {
        const char* then = reinterpret_cast<const char*>(w + at + 64 * line.value);
        if (into_l2) {
          _mm_prefetch(then + l2_ahead, _MM_HINT_T1);
        } else {
          _mm_prefetch(then + kSingleAheadBytes, _MM_HINT_T0);
        }
      });
    } else if (apart == 1) {
      fetch_into_l2(ahead + at / kStepBytes * ahead_bytes, ahead_bytes);
    } else if (token0 == call.token0) {
      unroll<R * kStepBytes / 64>([&](auto i) __attribute__((always_inline)) {
        const auto* line = reinterpret_cast<const char*>(w + i.value % R * row_stride + at + 64 * (i.value / R));
        _mm_prefetch(line + l1_ahead_of_stream, _MM_HINT_T0);
        if (l2_ahead_of_stream != 0) _mm_prefetch(line + l2_ahead_of_stream, _MM_HINT_T1);
      });
    }
  };
  int64_t column = 0;
  for (; column + kStep <= call.k; column += kStep) {
    fetch(column);
    unroll<kStep / 16>([&](auto j) __attribute__((always_inline)) {
      step(Index<j.value % kChains>{}, column + 16 * j.value, 0xffff);
    });
  }
  for (; column < call.k; column += 16) step(Index<0>{}, column, first_lanes(call.k - column));
  unroll<R * T>([&](auto j) __attribute__((always_inline)) {
    constexpr int row = decltype(j)::value / T;
    const int64_t t = token0 + decltype(j)::value % T;
    __m512 total = sum[0][j.value];
    if constexpr (kChains == 2) {
      total = _mm512_add_ps(total, sum[1][j.value]);
    }
    float y = _mm512_reduce_add_ps(total);
    const int64_t at = r + row * apart;
    if (call.bias) y += call.bias[at];
    if (call.residual) y += call.residual[t * call.ld_residual + at];
    call.y[t * call.ldy + at] = y;
  });
}

using DotRows = void (*)(const LinearCall&, int64_t, int64_t, int64_t);

template <DType dtype, int R>
constexpr DotRows dot_by_tokens[kDotGroup + 1] = {nullptr, dot_rows<dtype, R, 1>, dot_rows<dtype, R, 2>,
                                                  dot_rows<dtype, R, 3>, dot_rows<dtype, R, 4>};

template <DType dtype>
void multiply_dot(const LinearCall& call, int64_t row0, int64_t row1) {
  const auto rows = [&](const DotRows* kernels, int64_t r, int64_t apart = 1) {
    for (int64_t t = call.token0; t < call.end_token(); t += kDotGroup)
      kernels[min64(kDotGroup, call.end_token() - t)](call, r, apart, t);
  };
  int64_t r = row0;
  static_assert(kStreams == kDotRows);
  const DotWay& way = dot_way();
  const bool one_by_one = call.n == 1 && call.k <= kSingleColumns;
  const bool in_streams = reads_in_streams() || (one_by_one ? way.one_in_streams : way.several_in_streams);
  const bool many = call.n > 2 * kDotGroup && way.many_rows == kManyDotRows;
  const int64_t n_streams = many ? kManyDotRows : kStreams;
  const int64_t of_stream =
      in_streams ? rows_of_streams(row1 - row0, static_cast<size_t>(call.k) * sizeof_element<dtype>, n_streams) : 0;
  const DotRows* of_each = many ? dot_by_tokens<dtype, kManyDotRows> : dot_by_tokens<dtype, kDotRows>;
  for (; r < row0 + of_stream; ++r) rows(of_each, r, of_stream);
  r = row0 + n_streams * of_stream;
  for (; !one_by_one && r + kDotRows <= row1; r += kDotRows) rows(dot_by_tokens<dtype, kDotRows>, r);
  for (; r < row1; ++r) rows(dot_by_tokens<dtype, 1>, r);
}

// ---- panels ----

TANDEM_INLINE void put_next(__m512i*& panel, __m512i v) {
  _mm512_store_si512(panel++, v);
}
TANDEM_INLINE void put_next(__m512i*& panel, __m512 v) {
  put_next(panel, _mm512_castps_si512(v));
}

// 16 bytes of each row at `at` (4 or 8 columns) to columns of the panel.
template <DType dtype>
TANDEM_INLINE void unpack_piece(const StripRows& rows, size_t at, __m512i*& panel) {
  const Words4 w = load_words4(rows, at);
  unroll<4>([&](auto i) __attribute__((always_inline)) {
    const __m512i word = w.w[i.value];
    if constexpr (dtype == DType::F32) {
      put_next(panel, word);
    } else if constexpr (dtype == DType::BF16) {
      put_next(panel, _mm512_slli_epi32(word, 16));
      put_next(panel, _mm512_and_si512(word, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
    } else {
      put_next(panel, low_halves(word));
      put_next(panel, high_halves(word));
    }
  });
}

template <DType dtype>
void unpack_strip(const std::byte* w, size_t stride, int64_t n_rows, int64_t k, __m512i* panel) {
  const size_t row_size = static_cast<size_t>(k) * sizeof_element<dtype>;
  size_t at = 0;
  if (n_rows >= kStrip) {
    for (; at + 16 <= row_size; at += 16) unpack_piece<dtype>({w, stride}, at, panel);
  }
  // The last rows and columns are read from a full-size copy, with zeros up to the padded width.
  const size_t padded_size = static_cast<size_t>(padded(k)) * sizeof_element<dtype>;
  for (; at < padded_size; at += 16) {
    alignas(64) std::byte tail[16 * 16] = {};
    const size_t width = row_size > at + 16 ? 16 : row_size > at ? row_size - at : 0;
    for (int64_t i = 0; i < min64(n_rows, kStrip); ++i) {
      std::memcpy(tail + 16 * i, w + static_cast<size_t>(i) * stride + at, width);
    }
    unpack_piece<dtype>({tail, 16}, 0, panel);
  }
}

// S strips whose panels lie panel_vectors apart, T tokens, all columns. acc: [S][T][16].
template <int S, int T>
void tile_kernel(const __m512* panel, size_t panel_vectors, const float* x, int64_t n_columns, float* acc) {
  __m512 sum[S * T];
  unroll<S * T>([&](auto i) __attribute__((always_inline)) { sum[i.value] = _mm512_setzero_ps(); });
  for (int64_t i = 0; i < n_columns; ++i) {
    __m512 w[S];
    unroll<S>([&](auto s) __attribute__((always_inline)) {
      w[s.value] = _mm512_load_ps(reinterpret_cast<const float*>(panel + s.value * panel_vectors));
    });
    unroll<T>([&](auto t) __attribute__((always_inline)) {
      const __m512 both = _mm512_set1_ps(x[t.value]);
      unroll<S>([&](auto s) __attribute__((always_inline)) {
        __m512& a = sum[s.value * T + t.value];
        a = _mm512_fmadd_ps(w[s.value], both, a);
      });
    });
    ++panel;
    x += T;
  }
  unroll<S * T>([&](auto i)
                    __attribute__((always_inline)) { _mm512_store_ps(acc + 16 * i.value, sum[i.value]); });
}

using TileKernel = void (*)(const __m512*, size_t, const float*, int64_t, float*);

// Not std::array, which drops the attributes of __m512 (-Wignored-attributes).
struct TileKernels {
  TileKernel by_tokens[kMaxTile + 1];
};
template <int S, int... T>
constexpr TileKernels tile_kernels(std::integer_sequence<int, T...>) {
  return {{nullptr, tile_kernel<S, T + 1>...}};
}
template <int S>
constexpr TileKernels kTileKernels = tile_kernels<S>(std::make_integer_sequence<int, kMaxTile>{});

template <DType dtype>
void multiply_tiles(const LinearCall& call, int64_t row0, int64_t row1, std::byte* scratch) {
  const size_t stride = static_cast<size_t>(call.k) * sizeof_element<dtype>;
  const int64_t T = tile_tokens(call.n), n_columns = padded(call.k);
  float* acc = reinterpret_cast<float*>(scratch);
  __m512i* panels = reinterpret_cast<__m512i*>(acc + kPairStrips * kMaxTile * 16);
  const float* x = reinterpret_cast<const float*>(call.x);
  for (int64_t first = row0; first < row1; first += kPairStrips * kStrip) {
    const int64_t n_strips = min64(kPairStrips, (row1 - first + kStrip - 1) / kStrip);
    for (int64_t s = 0; s < n_strips; ++s) {
      const int64_t r = first + s * kStrip;
      unpack_strip<dtype>(call.w + static_cast<size_t>(r) * stride, stride, call.m - r, call.k,
                          panels + s * n_columns);
    }
    for (int64_t token0 = call.token0; token0 < call.end_token(); token0 += T) {
      const int64_t tokens = min64(T, call.end_token() - token0);
      const TileKernel kernel =
          n_strips == 1 ? kTileKernels<1>.by_tokens[tokens] : kTileKernels<2>.by_tokens[tokens];
      kernel(reinterpret_cast<const __m512*>(panels), static_cast<size_t>(n_columns), x + token0 * n_columns,
             n_columns, acc);
      for (int64_t s = 0; s < n_strips; ++s) {
        store_tile(call, first + s * kStrip, token0, tokens, acc + s * tokens * 16);
      }
    }
  }
}

template <DType dtype>
void multiply_dtype(const LinearCall& call, int64_t row0, int64_t row1, std::byte* scratch) {
  if (call.n <= dot_way().most_tokens) {
    multiply_dot<dtype>(call, row0, row1);
  } else {
    multiply_tiles<dtype>(call, row0, row1, scratch);
  }
}

}  // namespace

size_t float_encoded_bytes(int64_t n, int64_t k) {
  return static_cast<size_t>(n * (n <= dot_way().most_tokens ? k : padded(k))) * sizeof(float);
}

void float_encode(const float* x, int64_t ldx, int64_t n, int64_t k, int64_t token0, int64_t token1,
                  std::byte* encoded) {
  float* const to = reinterpret_cast<float*>(encoded);
  if (n <= dot_way().most_tokens) {
    for (int64_t t = token0; t < token1; ++t)
      std::memcpy(to + t * k, x + t * ldx, static_cast<size_t>(k) * 4);
    return;
  }
  const int64_t step = tile_tokens(n);
  for (int64_t first = token0; first < token1; first += step) {
    const int64_t T = min64(step, n - first);
    float* tile = to + first * padded(k);
    for (int64_t c = 0; c < padded(k); c += kSpan) {
      alignas(64) float rows[16][kSpan];
      const int64_t columns = min64(kSpan, padded(k) - c), present = min64(columns, k - c);
      for (int64_t t = 0; t < T; ++t) {
        std::memcpy(rows[t], x + (first + t) * ldx + c, static_cast<size_t>(present) * sizeof(float));
        for (int64_t i = present; i < columns; ++i) rows[t][i] = 0.0f;
      }
      interleave({reinterpret_cast<const std::byte*>(rows), sizeof rows[0]}, columns, T, tile + c * T);
    }
  }
}

size_t float_scratch_bytes(int64_t n, int64_t k) {
  return n <= dot_way().most_tokens ? 0 : static_cast<size_t>(kPairStrips * (kMaxTile + padded(k))) * 64;
}

void multiply_float(const LinearCall& call, int64_t row0, int64_t row1, std::byte* scratch) {
  switch (call.dtype) {
    case DType::F32: return multiply_dtype<DType::F32>(call, row0, row1, scratch);
    case DType::F16: return multiply_dtype<DType::F16>(call, row0, row1, scratch);
    default: return multiply_dtype<DType::BF16>(call, row0, row1, scratch);
  }
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
