// Products of a few tokens with block-quantized weights, one row after the other: for decode, where weights come from memory.
//
// Why not in strips (linear_strip.h). Sixteen rows side by side are sixteen streams of two kilobytes each, which the caches'
// own prefetching does not follow; one row after the other is a single stream as long as the matrix, or four.
//
// Floors, for 512 columns, which are 288 bytes of Q4_0 or Q4_K, and T tokens: 8 T products of vectors. As written here about 39 vector
// operations of the weights and 12 of each token for Q4_0, 36 and 14 for Q4_K, 56 and 13 for Q6_K. A core that starts two of 64 bytes
// a cycle takes 25 cycles for one token and 46 for four, 29 and 16 GB/s at 2.6 GHz: memory is the limit for one token.
// Before, sums of a row were spread over columns: a vector of weights had a block or two, and each product of a token was multiplied
// by scales of its own, 24 operations of the weights and 28 of each token for Q4_0, 28 and 20 for Q4_K. Measured in one process on a
// core of an Emerald Rapids without AMX, whose streams then read 15 GB/s of memory, k 4096; what was faster now, from the L2 and from
// memory, one, two and four tokens: Q4_0 1.18, 1.35, 1.56 and 1.05, 1.08, 1.55; Q4_K 1.10, 1.21, 1.22 and 1.05, 1.06, 1.23; Q6_K
// 1.06, 1.21, 1.37 and 1.11, 1.11, 1.12; MXFP4 1.30, 1.42, 1.63 and 1.05, 1.20, 1.66; Q5_K 0.94, 1.00, 1.00 and 1.03, 1.04, 1.00; Q8_0
// 0.81, 1.02, 1.23 and 1.03, 1.09, 1.04. Not measured on a Zen.
// Weights come in four streams on Intel (kStreams in fetch.h), first into the L2 and a little later into the L1: into the
// L2 alone a token of Q4_0 read 12 GB/s, into the L1 alone 14.7, and with both 16, as Q4_K, Q6_K and Q8_0; how far ahead does not matter between
// 1 and 3 KB.
#pragma once

#include <array>
#include <cstring>
#include <utility>

#include "cpu/avx512/linear_format.h"
#include "cpu/avx512/linear_layout.h"
#include "cpu/avx512/linear_simd.h"
#include "cpu/avx512/linear_store.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// The sums of the lanes of four vectors. Each is added up in the same order.
TANDEM_INLINE __m128 sums_of_lanes(__m512 a, __m512 b, __m512 c, __m512 d) {
  const auto fold32 = [](__m512 u, __m512 v) __attribute__((always_inline)) {
    return _mm512_add_ps(_mm512_unpacklo_ps(u, v), _mm512_unpackhi_ps(u, v));
  };
  const __m512d low = _mm512_castps_pd(fold32(a, b)), high = _mm512_castps_pd(fold32(c, d));
  const __m512 fours = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)), _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)));
  const __m256 two = _mm256_add_ps(_mm512_castps512_ps256(fours), _mm512_extractf32x8_ps(fours, 1));
  return _mm_add_ps(_mm256_castps256_ps128(two), _mm256_extractf128_ps(two, 1));
}

// Which of a step's blocks or super-blocks are the row's: the scales of others are taken as zero, whatever they are. The unit of lane
// i of some scales is i / div % mod.
struct AllUnits {
  template <int div, int mod>
  TANDEM_INLINE __m512 present(__m512 scales) const {
    return scales;
  }
};
struct FirstUnits {
  int n;
  template <int div, int mod>
  TANDEM_INLINE __m512 present(__m512 scales) const {
    const auto unit = [](int lane) { return lane / div % mod; };
    const __m512i units = _mm512_setr_epi32(unit(0), unit(1), unit(2), unit(3), unit(4), unit(5), unit(6), unit(7), unit(8), unit(9),
                                            unit(10), unit(11), unit(12), unit(13), unit(14), unit(15));
    return _mm512_maskz_mov_ps(_mm512_cmplt_epi32_mask(units, _mm512_set1_epi32(n)), scales);
  }
};

// Functions of their own, as are the kernels of streams: as one, five tokens and more take a compiler six times as long.
//
// What a row has behind its last whole step, of R streams, whose weights are at w.
template <class F, int T, int R>
[[gnu::noinline]] void add_rest(const LinearCall& call, const typename F::Columns* x, const std::byte* const (&w)[R], __m512* sums) {
  constexpr size_t step_bytes = kRowColumns / F::unit * F::block_bytes;
  const int n_units = static_cast<int>(call.k % kRowColumns) / F::unit;
  const size_t n_bytes = static_cast<size_t>(n_units) * F::block_bytes;
  const std::byte* const weights_end = call.w + static_cast<size_t>(call.m * (call.k / F::unit)) * F::block_bytes;
#pragma GCC unroll 1
  for (int s = 0; s < R; ++s) {
    // What is read behind the row is the next one's; behind the last one nothing may be read.
    alignas(64) std::byte copy[step_bytes];
    const std::byte* from = w[s];
    if (from + step_bytes > weights_end) {
      std::memcpy(copy, from, n_bytes);
      std::memset(copy + n_bytes, 0, step_bytes - n_bytes);
      from = copy;
    }
    F::template add<T>(from, x, FirstUnits{n_units}, sums + T * s);
  }
}

// R streams of weights at a time, each of some rows one after the other: the first R-th of the call's rows, the second, and so on.
template <class F, int T, int R>
[[gnu::noinline]] void dot_streams(const LinearCall& call, int64_t row0, int64_t rows_of_stream, size_t item_bytes, size_t ahead_l1, size_t ahead_l2) {
  constexpr size_t step_bytes = kRowColumns / F::unit * F::block_bytes;
  const size_t stride = static_cast<size_t>(call.k / F::unit) * F::block_bytes;
  const int64_t n_steps = call.k / kRowColumns;
  const size_t rest_bytes = stride - static_cast<size_t>(n_steps) * step_bytes;
  const size_t stream_bytes = static_cast<size_t>(rows_of_stream) * stride;
  AheadOfStreams into_l2(stream_bytes, item_bytes, ahead_l2), into_l1(stream_bytes, item_bytes, ahead_l1);
  const std::byte* w[R];
  unroll<R>([&](auto s) __attribute__((always_inline)) {
    w[s.value] = call.w + static_cast<size_t>(row0 + s.value * rows_of_stream) * stride;
  });
  for (int64_t r = row0; r < row0 + rows_of_stream; ++r) {
    constexpr int kVectors = (R * T + 3) / 4 * 4;
    __m512 sums[kVectors];
    unroll<kVectors>([&](auto i) __attribute__((always_inline)) { sums[i.value] = _mm512_setzero_ps(); });
    const auto* x = reinterpret_cast<const typename F::Columns*>(call.x);
    const auto near = into_l1.next_row(stride, n_steps, step_bytes);
    int64_t i = 0;
    for (const auto& part : into_l2.next_row(stride, n_steps, step_bytes)) {
      for (; i < part.end; ++i, x += T) {
        const size_t near_distance = near[i < near[0].end ? 0 : 1].distance;
        unroll<R>([&](auto s) __attribute__((always_inline)) {
          const std::byte*& from = w[s.value];
          unroll<(step_bytes + 63) / 64>([&](auto line) __attribute__((always_inline)) {
            const char* p = reinterpret_cast<const char*>(from) + 64 * line.value;
            _mm_prefetch(p + near_distance, _MM_HINT_T0);
            _mm_prefetch(p + part.distance, _MM_HINT_T1);
          });
          F::template add<T>(from, x, AllUnits{}, sums + T * s.value);
          from += step_bytes;
        });
      }
    }
    if (rest_bytes > 0) {
      // Copies, so that the others can stay in registers.
      __m512 with_rest[kVectors];
      const std::byte* from[R];
      unroll<kVectors>([&](auto v) __attribute__((always_inline)) { with_rest[v.value] = sums[v.value]; });
      unroll<R>([&](auto s) __attribute__((always_inline)) { from[s.value] = std::exchange(w[s.value], w[s.value] + rest_bytes); });
      add_rest<F, T, R>(call, x, from, with_rest);
      unroll<kVectors>([&](auto v) __attribute__((always_inline)) { sums[v.value] = with_rest[v.value]; });
    }
    unroll<kVectors / 4>([&](auto four) __attribute__((always_inline)) {
      constexpr int first = 4 * decltype(four)::value;
      alignas(16) float y[4];
      _mm_store_ps(y, sums_of_lanes(sums[first], sums[first + 1], sums[first + 2], sums[first + 3]));
      unroll<4>([&](auto j) __attribute__((always_inline)) {
        constexpr int index = first + decltype(j)::value, t = index % T;
        if constexpr (index < R * T) {
          const int64_t row = r + index / T * rows_of_stream;
          float value = y[j.value];
          if (call.bias) value += call.bias[row];
          if (call.residual) value += call.residual[t * call.ld_residual + row];
          call.y[t * call.ldy + row] = value;
        }
      });
    });
  }
}

// Whether the activations of all columns stay in the first cache from row to row, beside the weights. If not, four rows of four streams
// share what comes of them from the L2. Two cores of a Zen 5, 4096 x 14336, three, four, five and eight tokens, GB/s row by row and so:
// Q4_0 17 and 40, 12 and 43, 11 and 40, 8 and 25; Q4_K 16 and 36, 13 and 37, 11 and 36; two tokens, which fit, 5% slower so.
template <class F, int T>
TANDEM_INLINE bool fits_in_l1(int64_t k) {
  const size_t n_bytes = static_cast<size_t>((k + kRowColumns - 1) / kRowColumns * T) * sizeof(typename F::Columns);
  return 4 * n_bytes <= 3 * near_cache_bytes();
}

template <class F, int T>
void dot_rows(const LinearCall& call, int64_t row0, int64_t row1) {
  const size_t stride = static_cast<size_t>(call.k / F::unit) * F::block_bytes;
  const auto bytes = [&](int64_t n_rows) { return static_cast<size_t>(n_rows) * stride; };
  const bool in_streams = reads_in_streams() || !fits_in_l1<F, T>(call.k);
  const int64_t rows_of_stream = in_streams ? rows_of_streams(row1 - row0, stride) : 0;
  dot_streams<F, T, kStreams>(call, row0, rows_of_stream, bytes(row1 - row0), kAheadInL1, kAheadInL2);
  const int64_t rest = row0 + kStreams * rows_of_stream;
  dot_streams<F, T, 1>(call, rest, row1 - rest, bytes(row1 - rest), ahead_into_l1(), ahead_into_l2());
}

// Most tokens of a format's kernels where they read one stream and vectors of 64 bytes take one cycle, as on a Zen 5.
template <class F>
inline constexpr int64_t one_stream_tokens = []() -> int64_t {
  if constexpr (requires { F::one_stream_tokens; }) return F::one_stream_tokens;
  return F::max_tokens;
}();

// By the number of tokens; null beyond F::max_tokens.
template <class F>
struct RowKernels {
  template <int T>
  static constexpr RowKernel kernel() {
    if constexpr (T >= 1 && T <= F::max_tokens) return dot_rows<F, T>;
    return nullptr;
  }
  template <int... T>
  static constexpr std::array<RowKernel, kMaxRowTokens + 1> all(std::integer_sequence<int, T...>) {
    return {kernel<T>()...};
  }
  static constexpr std::array<RowKernel, kMaxRowTokens + 1> by_tokens =
      all(std::make_integer_sequence<int, kMaxRowTokens + 1>{});
};

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
