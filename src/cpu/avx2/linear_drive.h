// The loops around the kernels: over rows and tokens for dot products; over strips of rows, columns and
// tokens for panels. A kernel handles one row or one chunk of a strip and a few tokens; their number is a
// template parameter.
#pragma once

#include <cstring>

#include "cpu/avx2/linear.h"
#include "cpu/avx2/linear_simd.h"
#include "cpu/simd/fetch.h"
#include "cpu/simd/unroll.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

TANDEM_INLINE float plus_addends(const LinearCall& call, int64_t token, int64_t row, float y) {
  if (call.bias) y += call.bias[row];
  if (call.residual) y += call.residual[token * call.ld_residual + row];
  return y;
}

// Calls fn.template operator()<T>(first) over the tokens of the call, T being Most or what is left at the end.
template <int Most, class Fn>
TANDEM_INLINE void for_tokens(const LinearCall& call, Fn&& fn) {
  const int64_t n = call.end_token();
  int64_t t = call.token0;
  for (; t + Most <= n; t += Most) fn.template operator()<Most>(t);
  const auto rest = [&]<int T>(auto&& self) {
    if constexpr (T > 0) {
      if (n - t == T) return fn.template operator()<T>(t);
      self.template operator()<T - 1>(self);
    }
  };
  rest.template operator()<Most - 1>(rest);
}

// Dot products. Kernel: row_bytes(k); Step, the weights of k_step columns of a row; Sums<T>, of a row with T tokens: total(t);
// add<T>(step, tokens, column, sums); stream_tokens, up to how many are multiplied in streams; perhaps add_four<T>, the same of four
// rows, with the same results.

// Sums<T> in eight lanes of each token.
template <int T>
struct SumsOfLanes {
  __m256 acc[T];
  TANDEM_INLINE SumsOfLanes() {
    for (int t = 0; t < T; ++t) acc[t] = _mm256_setzero_ps();
  }
  TANDEM_INLINE float total(int t) const { return sum_lanes(acc[t]); }
};

// The columns from `column` on, fewer than a step, copied into a zeroed one, which multiplies the zeros that pad the activations.
template <class Kernel, int T, class Sums>
TANDEM_INLINE void add_rest(const std::byte* w, const ActToken (&tokens)[T], int64_t k, int64_t column, Sums& sums) {
  if (column == k) return;
  typename Kernel::Step rest;
  std::memset(&rest, 0, sizeof(rest));
  std::memcpy(&rest, w, Kernel::row_bytes(k - column));
  Kernel::template add<T>(rest, tokens, column, sums);
}

// Not inlined: beside dot_streams() GCC kept fewer of its sums in registers.
template <class Kernel>
[[gnu::noinline]] void dot_adjacent_rows(const LinearCall& call, int64_t row0, int64_t row1) {
  using Step = typename Kernel::Step;
  const ActLayout at = act_layout(Kernel::format, call.k);
  const size_t stride = Kernel::row_bytes(call.k);
  for (int64_t row = row0; row < row1; ++row) {
    const std::byte* w = call.w + static_cast<size_t>(row) * stride;
    for_tokens<Kernel::most_tokens>(call, [&]<int T>(int64_t t0) {
      ActToken tokens[T];
      for (int t = 0; t < T; ++t) tokens[t] = act_token(call.x, at, t0 + t);
      typename Kernel::template Sums<T> sums;
      const Step* step = reinterpret_cast<const Step*>(w);
      int64_t column = 0;
      for (; column + Kernel::k_step <= call.k; column += Kernel::k_step, ++step) {
        prefetch_ahead(step, sizeof(Step));
        Kernel::template add<T>(*step, tokens, column, sums);
      }
      add_rest<Kernel>(reinterpret_cast<const std::byte*>(step), tokens, call.k, column, sums);
      for (int t = 0; t < T; ++t)
        call.y[(t0 + t) * call.ldy + row] = plus_addends(call, t0 + t, row, sums.total(t));
    });
  }
}

// A step of each of kStreams rows, all of them together where the kernel can.
template <class Kernel, int T, class Sums>
TANDEM_INLINE void add_of_streams(const std::byte* const (&w)[kStreams], const ActToken (&tokens)[T], int64_t column,
                                  Sums (&sums)[kStreams]) {
  const auto step = [&](int s) __attribute__((always_inline)) { return reinterpret_cast<const typename Kernel::Step*>(w[s]); };
  if constexpr (requires { Kernel::template add_four<T>({}, tokens, column, sums); }) {
    static_assert(kStreams == 4);
    Kernel::template add_four<T>({step(0), step(1), step(2), step(3)}, tokens, column, sums);
  } else {
    unroll<kStreams>([&](auto s) __attribute__((always_inline)) {
      Kernel::template add<T>(*step(s.value), tokens, column, sums[s.value]);
    });
  }
}

// T tokens with kStreams streams of weights at a time, each of some rows one after the other: the first part of the rows, the second, and
// so on. From memory, on two cores of a Zen 3, this was faster with one token than a single stream by 3% (Q4_0), 7% (Q4_K, Q8_0), 9%
// (Q5_K) and 23% (Q6_K), on one core by 19% (Q4_K). With two to four tokens most are up to 15% slower so; those whose sums' lanes are
// blocks gain up to 20%.
// On every CPU: reads_in_streams() tells of other kernels.
template <class Kernel, int T>
void dot_streams(const LinearCall& call, int64_t t0, int64_t row0, int64_t rows_of_stream, int64_t rows_of_item) {
  using Step = typename Kernel::Step;
  const ActLayout at = act_layout(Kernel::format, call.k);
  ActToken tokens[T];
  for (int t = 0; t < T; ++t) tokens[t] = act_token(call.x, at, t0 + t);
  const size_t stride = Kernel::row_bytes(call.k);
  constexpr size_t kAhead = 768;  // bytes, of each stream
  AheadOfStreams ahead(static_cast<size_t>(rows_of_stream) * stride, static_cast<size_t>(rows_of_item) * stride, kAhead);
  for (int64_t row = row0; row < row0 + rows_of_stream; ++row) {
    typename Kernel::template Sums<T> sums[kStreams];
    const std::byte* w[kStreams];
    unroll<kStreams>([&](auto s) __attribute__((always_inline)) {
      w[s.value] = call.w + static_cast<size_t>(row + s.value * rows_of_stream) * stride;
    });
    int64_t column = 0;
    for (const auto& part : ahead.next_row(stride, call.k / Kernel::k_step, sizeof(Step))) {
      for (; column < part.end * Kernel::k_step; column += Kernel::k_step) {
        unroll<kStreams>([&](auto s) __attribute__((always_inline)) {
          prefetch<_MM_HINT_T0>(w[s.value], static_cast<int64_t>(part.distance), sizeof(Step));
        });
        add_of_streams<Kernel>(w, tokens, column, sums);
        unroll<kStreams>([&](auto s) __attribute__((always_inline)) { w[s.value] += sizeof(Step); });
      }
    }
    unroll<kStreams>([&](auto s) __attribute__((always_inline)) {
      const int64_t r = row + s.value * rows_of_stream;
      add_rest<Kernel>(w[s.value], tokens, call.k, column, sums[s.value]);
      for (int t = 0; t < T; ++t) call.y[(t0 + t) * call.ldy + r] = plus_addends(call, t0 + t, r, sums[s.value].total(t));
    });
  }
}

template <class Kernel>
void dot_rows(const LinearCall& call, int64_t row0, int64_t row1) {
  constexpr int kTokens = Kernel::stream_tokens;
  const bool in_streams = kTokens > 1 || call.end_token() - call.token0 == 1;
  if (const int64_t n = in_streams ? rows_of_streams(row1 - row0, Kernel::row_bytes(call.k)) : 0; n > 0) {
    for_tokens<kTokens>(call, [&]<int T>(int64_t t0) { dot_streams<Kernel, T>(call, t0, row0, n, row1 - row0); });
    row0 += kStreams * n;
  }
  if constexpr (kTokens > 1) {
    for (; row0 + kStreams <= row1; row0 += kStreams)
      for_tokens<kTokens>(call, [&]<int T>(int64_t t0) { dot_streams<Kernel, T>(call, t0, row0, 1, kStreams); });
  }
  dot_adjacent_rows<Kernel>(call, row0, row1);
}

constexpr int kStripRows = 16;  // two vectors of rows

// A strip's sums over the chunks of columns so far, [token][row of the strip]. They wait in the scratch, not in
// y: bias and residual are added last, so that a result does not depend on the number of chunks or on which op
// adds the residual, and the residual may be y itself.
using Partial = float[kStripRows];

enum class Chunks { only, first, middle, last };  // the place of a chunk among those of the columns

// Adds a tile's sums over a chunk of columns to the partial sums, and stores them in y after the last chunk.
template <int T>
TANDEM_INLINE void add_tile(const LinearCall& call, __m256 (&tile)[2][T], int64_t row, int64_t token,
                            Partial* partial, Chunks chunk) {
  const bool full = call.m - row >= kStripRows;
  for (int t = 0; t < T; ++t) {
    float* sums = partial[token + t];
    for (int p = 0; p < 2; ++p) {
      __m256 sum = tile[p][t];
      if (chunk == Chunks::middle || chunk == Chunks::last)
        sum = _mm256_add_ps(sum, _mm256_load_ps(sums + 8 * p));
      if (chunk == Chunks::first || chunk == Chunks::middle || !full) {
        _mm256_store_ps(sums + 8 * p, sum);
        continue;
      }
      if (call.bias) sum = _mm256_add_ps(sum, _mm256_loadu_ps(call.bias + row + 8 * p));
      if (call.residual) {
        const float* residual = call.residual + (token + t) * call.ld_residual + row;
        sum = _mm256_add_ps(sum, _mm256_loadu_ps(residual + 8 * p));
      }
      _mm256_storeu_ps(call.y + (token + t) * call.ldy + row + 8 * p, sum);
    }
    if (full || chunk == Chunks::first || chunk == Chunks::middle) continue;
    float* y = call.y + (token + t) * call.ldy + row;
    for (int64_t r = 0; r < call.m - row; ++r) y[r] = plus_addends(call, token + t, row + r, sums[r]);
  }
}

// Weights of a strip to unpack, and what to prefetch meanwhile: either the next chunk of each row, or as many bytes as the chunk has,
// of those that lie behind the strip.
struct Strip {
  const std::byte* rows[kStripRows];
  int64_t to_next;  // bytes, from a row to its next chunk
  const std::byte* behind;
};

// Bytes of a kernel's chunk in the scratch; the partial sums of call.n tokens follow it.
template <class Kernel>
constexpr size_t chunk_bytes = (sizeof(typename Kernel::Chunk) + 63) / 64 * 64;

// Kernel: Chunk, the unpacked weights of a strip, k_columns of them at a time; pack(strip, k0, columns,
// chunk); tile<T>(chunk, tokens, k0, columns, sums). row0 is a multiple of kStripRows; rows past m repeat the
// last one and are not stored.
template <class Kernel>
void panel_rows(const LinearCall& call, int64_t row0, int64_t row1, std::byte* scratch) {
  auto& chunk = *reinterpret_cast<typename Kernel::Chunk*>(scratch);
  auto* partial = reinterpret_cast<Partial*>(scratch + chunk_bytes<Kernel>);
  const ActLayout at = act_layout(Kernel::format, call.k);
  const size_t stride = Kernel::row_bytes(call.k);
  for (int64_t row = row0; row < row1; row += kStripRows) {
    Strip strip;
    for (int64_t r = 0; r < kStripRows; ++r) {
      strip.rows[r] = call.w + static_cast<size_t>(row + r < call.m ? row + r : call.m - 1) * stride;
    }
    for (int64_t k0 = 0; k0 < call.k; k0 += Kernel::k_columns) {
      const int64_t columns = call.k - k0 < Kernel::k_columns ? call.k - k0 : Kernel::k_columns;
      const int64_t next = k0 + columns < call.k ? columns : call.k * kStripRows - k0;
      strip.to_next = static_cast<int64_t>(Kernel::row_bytes(next));
      strip.behind = call.w + static_cast<size_t>(row + kStripRows) * stride + kStripRows * Kernel::row_bytes(k0);
      const bool ends = k0 + columns == call.k;
      const Chunks place =
          ends ? (k0 == 0 ? Chunks::only : Chunks::last) : (k0 == 0 ? Chunks::first : Chunks::middle);
      Kernel::pack(strip, k0, columns, chunk);
      for_tokens<Kernel::most_tokens>(call, [&]<int T>(int64_t t0) {
        ActToken tokens[T];
        for (int t = 0; t < T; ++t) tokens[t] = act_token(call.x, at, t0 + t);
        __m256 sums[2][T];
        Kernel::template tile<T>(chunk, tokens, k0, columns, sums);
        add_tile<T>(call, sums, row, t0, partial, place);
      });
    }
  }
}

template <class Dot, class Panel>
constexpr DtypeKernels dtype_kernels(int64_t panel_from) {
  return {Dot::format, Panel::format, panel_from, 1, chunk_bytes<Panel>, dot_rows<Dot>, panel_rows<Panel>};
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
