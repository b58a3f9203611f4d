// Products with weights that are floats: F32, F16, BF16. Activations stay F32; any number of columns.
#include "cpu/avx2/linear_drive.h"
#include "cpu/simd/fetch.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

struct F32 {
  using Value = float;
  TANDEM_INLINE static __m256 load8(const float* p) { return _mm256_loadu_ps(p); }
};
struct F16 {
  using Value = fp16_t;
  TANDEM_INLINE static __m256 load8(const fp16_t* p) { return _mm256_cvtph_ps(load128(p)); }
};
struct BF16 {
  using Value = bf16_t;
  TANDEM_INLINE static __m256 load8(const bf16_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16));
  }
};

// Loads the last n < 8 values, zero-padded: a row may end where the mapping does.
template <class Format>
TANDEM_INLINE __m256 load_rest(const typename Format::Value* p, int64_t n) {
  typename Format::Value values[8] = {};
  std::memcpy(values, p, static_cast<size_t>(n) * sizeof(values[0]));
  return Format::load8(values);
}

// Dot products of R rows from row r on with T tokens: what is loaded of the activations serves R rows, what is converted of the
// weights T tokens. 4 x 3 sums, three vectors of activations and one of weights are the sixteen registers.
//
// Floor: one FMA for 8 columns, row and token. A core of a Zen 4, whose FMAs make 117 Gop/s: F16 of 8 tokens 104, of 24 108, of
// 4 97 and from memory 21 GB/s; BF16 some 15% less. Row by row 4 tokens were read at 7 GB/s, as activations of more than 32 KB
// came from L2 for each. Adjacent rows prefetch those behind them, in the order of memory, a part with each of the n_groups groups
// of tokens; rows of several streams, `apart` from each other, the next columns of their own, with the first group.
constexpr int kDotRows = 4, kDotTokens = 3;
constexpr int64_t kAheadOfStream = 512;  // bytes

template <class Format, int R, int T, int kAcc>
void dot_tile(const LinearCall& call, int64_t r, int64_t apart, int64_t token0, int64_t group, int64_t n_groups) {
  using Value = typename Format::Value;
  const ActLayout at = act_layout(ActFormat{}, call.k);
  const int64_t k = call.k;
  const Value* w = reinterpret_cast<const Value*>(call.w) + r * k;
  const float* x[T];
  for (int t = 0; t < T; ++t)
    x[t] = reinterpret_cast<const float*>(act_token(call.x, at, token0 + t).columns);
  __m256 acc[kAcc][R][T];
  for (int j = 0; j < kAcc; ++j) {
    for (int i = 0; i < R; ++i) {
      for (int t = 0; t < T; ++t) acc[j][i][t] = _mm256_setzero_ps();
    }
  }
  const auto step = [&](int64_t column, int64_t n, int j) __attribute__((always_inline)) {
    __m256 columns[T];
    for (int t = 0; t < T; ++t) columns[t] = _mm256_loadu_ps(x[t] + column);
    for (int i = 0; i < R; ++i) {
      const Value* from = w + i * apart * k + column;
      const __m256 v = n == 8 ? Format::load8(from) : load_rest<Format>(from, n);
      for (int t = 0; t < T; ++t) acc[j][i][t] = _mm256_fmadd_ps(v, columns[t], acc[j][i][t]);
    }
  };
  constexpr int64_t kStep = 32;
  constexpr size_t kStepBytes = kStep * sizeof(Value);
  const size_t ahead_bytes = R * kStepBytes / static_cast<size_t>(n_groups);
  const std::byte* ahead = reinterpret_cast<const std::byte*>(w + R * k) +
                           static_cast<size_t>(group) *
                               (R * static_cast<size_t>(k) * sizeof(Value) / static_cast<size_t>(n_groups));
  int64_t c = 0;
  for (; c + kStep <= k; c += kStep) {
    if (apart == 1) {
      prefetch<_MM_HINT_T1>(ahead + static_cast<size_t>(c / kStep) * ahead_bytes, 0, ahead_bytes);
    } else if (group == 0) {
      for (int i = 0; i < R; ++i) prefetch<_MM_HINT_T0>(w + i * apart * k + c, kAheadOfStream, kStepBytes);
    }
    for (int j = 0; j < kStep / 8; ++j) step(c + 8 * j, 8, j % kAcc);
  }
  for (; c + 8 <= k; c += 8) step(c, 8, 0);
  if (c < k) step(c, k - c, kAcc - 1);
  for (int i = 0; i < R; ++i) {
    for (int t = 0; t < T; ++t) {
      __m256 sum = acc[0][i][t];
      if constexpr (kAcc == 2) sum = _mm256_add_ps(sum, acc[1][i][t]);
      const int64_t row = r + i * apart;
      call.y[(token0 + t) * call.ldy + row] = plus_addends(call, token0 + t, row, sum_lanes(sum));
    }
  }
}

// All tokens of the call, in groups of at most three that differ by one at most. How a sum is divided, kAcc, depends on the
// tokens, never on the rows, which workers share differently.
template <class Format, int R>
TANDEM_INLINE void dot_groups(const LinearCall& call, int64_t r, int64_t apart = 1) {
  const int64_t n = call.end_token() - call.token0, n_groups = (n + kDotTokens - 1) / kDotTokens;
  for (int64_t g = 0; g < n_groups; ++g) {
    const int64_t first = call.token0 + n * g / n_groups,
                  tokens = call.token0 + n * (g + 1) / n_groups - first;
    const auto tile = tokens == 1   ? dot_tile<Format, R, 1, 2>
                      : tokens == 2 ? dot_tile<Format, R, 2, 1>
                                    : dot_tile<Format, R, 3, 1>;
    tile(call, r, apart, first, g, n_groups);
  }
}

// A few tokens read the rows in streams: on two cores of a Zen 3, F16 of 1, 2 and 4 tokens at 21, 20 and 17 GB/s, of adjacent rows
// at 14, 15 and 14, row by row one token at 13. Eight and more tokens were some 10% slower in streams.
template <class Format>
void dot_float_rows(const LinearCall& call, int64_t row0, int64_t row1) {
  constexpr int64_t kMostInStreams = 4;
  static_assert(kStreams == kDotRows);
  const size_t row_bytes = static_cast<size_t>(call.k) * sizeof(typename Format::Value);
  const int64_t of_stream =
      call.end_token() - call.token0 <= kMostInStreams ? rows_of_streams(row1 - row0, row_bytes) : 0;
  int64_t r = row0;
  for (; r < row0 + of_stream; ++r) dot_groups<Format, kDotRows>(call, r, of_stream);
  r = row0 + kStreams * of_stream;
  for (; r + kDotRows <= row1; r += kDotRows) dot_groups<Format, kDotRows>(call, r);
  for (; r < row1; ++r) dot_groups<Format, 1>(call, r);
}

// Tokens from which panels are faster: with 32 dot products make 108 Gop/s of F16 and 90 of BF16, panels 85; with 64 both 98
// and 83.
constexpr int64_t kPanelFrom = 41;
static_assert(kPanelFrom <= kDividedTokens);  // so that workers never share the tokens of dot products

// F32 panels of 16 rows; 2 vectors of rows times 6 tokens stay in registers.
template <class Format>
struct FloatPanel {
  using Value = typename Format::Value;
  static constexpr ActFormat format{};
  static constexpr int most_tokens = 6;
  static constexpr int64_t k_columns = 384;
  struct alignas(64) Chunk {
    float w[k_columns][2][8];  // [column][half of the strip][8 rows]
  };
  TANDEM_INLINE static size_t row_bytes(int64_t k) { return static_cast<size_t>(k) * sizeof(Value); }

  TANDEM_INLINE static void pack(const Strip& strip, int64_t k0, int64_t columns, Chunk& to) {
    for (int64_t c = 0; c < columns; c += 8) {
      const int64_t n = columns - c < 8 ? columns - c : 8;
      for (int p = 0; p < 2; ++p) {
        __m256 v[8];
        for (int r = 0; r < 8; ++r) {
          const Value* w = reinterpret_cast<const Value*>(strip.rows[8 * p + r]) + k0 + c;
          if (c % 32 == 0) prefetch<_MM_HINT_T1>(w, strip.to_next, 32 * sizeof(Value));
          v[r] = n == 8 ? Format::load8(w) : load_rest<Format>(w, n);
        }
        transpose8(v);
        for (int i = 0; i < 8; ++i) _mm256_store_ps(to.w[c + i][p], v[i]);
      }
    }
  }

  template <int T>
  TANDEM_INLINE static void tile(const Chunk& chunk, const ActToken (&x)[T], int64_t k0, int64_t columns,
                                 __m256 (&sums)[2][T]) {
    const float* from[T];
    for (int t = 0; t < T; ++t) from[t] = reinterpret_cast<const float*>(x[t].columns) + k0;
    __m256 acc[2][T];
    for (int t = 0; t < T; ++t) acc[0][t] = acc[1][t] = _mm256_setzero_ps();
    for (int64_t c = 0; c < columns; ++c) {
      const __m256 w0 = _mm256_load_ps(chunk.w[c][0]), w1 = _mm256_load_ps(chunk.w[c][1]);
      for (int t = 0; t < T; ++t) {
        const __m256 column = _mm256_broadcast_ss(from[t] + c);
        acc[0][t] = _mm256_fmadd_ps(w0, column, acc[0][t]);
        acc[1][t] = _mm256_fmadd_ps(w1, column, acc[1][t]);
      }
    }
    for (int t = 0; t < T; ++t) {
      sums[0][t] = acc[0][t];
      sums[1][t] = acc[1][t];
    }
  }
};

template <class Format>
constexpr DtypeKernels kernels_for = {{},
                                      FloatPanel<Format>::format,
                                      kPanelFrom,
                                      kDotRows,
                                      chunk_bytes<FloatPanel<Format>>,
                                      dot_float_rows<Format>,
                                      panel_rows<FloatPanel<Format>>};

}  // namespace

const DtypeKernels* float_kernels(DType dtype) {
  switch (dtype) {
    case DType::F32: return &kernels_for<F32>;
    case DType::F16: return &kernels_for<F16>;
    case DType::BF16: return &kernels_for<BF16>;
    default: return nullptr;
  }
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
