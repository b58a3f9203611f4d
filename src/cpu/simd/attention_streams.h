// Attention of few queries on a head's rows of several blocks at a time, a row of each in turn: on Intel, where a core reads more of
// memory in several streams (fetch.h). The rows of all heads in a block are one stretch of memory, so that each block is a stream; it is
// fetched into the L2 and a little later into the L1, as weights are (avx512/linear_rows.h).
//
// Before, each stretch was fetched into the L2 as a whole, in four streams, while the one before it was multiplied. Two cores of an
// Emerald Rapids, one of which reads 9.5 GB/s by plain loads in one stream, medians of seven alternating runs of attention_bench from
// memory, which vary by a tenth; GB/s of halves before and now, one query, four and eight: heads of 64 columns 11.6 and 12.5, 11.9 and
// 13.1, 7.4 and 7.4; of 128 13.6 and 14.4, 11.5 and 12.5, 7.3 and 8.7; with AVX2 one and four 11.7 and 13.8, 7.4 and 8.3; 12.7 and 12.9,
// 6.7 and 9.7. Values by 8 or 16 rows of each stream, so that they stay in the L1 while columns are taken in turn, were not faster.
#pragma once

#include "cpu/simd/attention_few.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// A head's rows in kStreams blocks, n in each.
struct StreamRows {
  const std::byte* rows[kStreams];
  size_t row_bytes;
  int64_t n;
  // How many bytes behind a row of each stream the rows are that are fetched into the L2 with it: from row `then_from` on those that
  // are read behind the stretch.
  ptrdiff_t then[kStreams];
  int64_t then_from;

  TANDEM_INLINE const std::byte* row(int stream, int64_t i) const { return rows[stream] + static_cast<size_t>(i) * row_bytes; }
  TANDEM_INLINE ptrdiff_t ahead(int stream, int64_t i) const { return i < then_from ? static_cast<ptrdiff_t>(kAheadInL2) : then[stream]; }
};

// Lines of n_bytes of a row, at `from`.
template <int n_bytes>
TANDEM_INLINE void fetch_into_l1(const std::byte* from) {
#pragma GCC unroll 16
  for (int b = 0; b < n_bytes; b += 64) _mm_prefetch(reinterpret_cast<const char*>(from) + kAheadInL1 + b, _MM_HINT_T0);
}

// How the positions of a vector of scores, or of a few vectors, are divided among the streams.
template <int kQueries>
struct StreamShape {
  static constexpr int kStride = stride_of(kQueries), kPositions = static_cast<int>(kLanes) / kStride;
  static constexpr int kVectors = kPositions < kStreams ? kStreams / kPositions : 1;  // scores of kRows rows of each stream
  static constexpr int kRows = kVectors * kPositions / kStreams;
};

// Scores of all queries: vectors of kRows rows of each stream, the next kRows, and so on.
template <class Rows, int kQueries>
void dot_streams(const Panels& p, const StreamRows& keys) {
  using Shape = StreamShape<kQueries>;
  constexpr int kStride = Shape::kStride, kPositions = Shape::kPositions;
  constexpr int64_t kColumnBytes = sizeof(typename Rows::Value);
  float* s = p.s;
  for (int64_t i = 0; i < keys.n; i += Shape::kRows) {
    for (int v = 0; v < Shape::kVectors; ++v, s += kLanes) {
      const std::byte* rows[kPositions];
#pragma GCC unroll 16
      for (int j = 0; j < kPositions; ++j) rows[j] = keys.row((v * kPositions + j) % kStreams, i + (v * kPositions + j) / kStreams);
      Vec dot[kLanes];
#pragma GCC unroll 16
      for (Vec& sum : dot) sum = set1(0.0f);
      for (int64_t d = 0; d < p.ld_k; d += kLanes) {
        if (d * kColumnBytes % 64 == 0) {
#pragma GCC unroll 16
          for (int j = 0; j < kPositions; ++j) {
            const std::byte* from = rows[j] + d * kColumnBytes;
            fetch_into_l1<64>(from);
            _mm_prefetch(reinterpret_cast<const char*>(from) + keys.ahead((v * kPositions + j) % kStreams, i), _MM_HINT_T1);
          }
        }
        Vec y[kQueries];
#pragma GCC unroll 8
        for (int q = 0; q < kQueries; ++q) y[q] = load(p.q + q * p.ld_k + d);
#pragma GCC unroll 16
        for (int j = 0; j < kPositions; ++j) {
          const Vec x = Rows::at(rows[j], d);
#pragma GCC unroll 8
          for (int q = 0; q < kQueries; ++q) dot[j * kStride + q] = fma(y[q], x, dot[j * kStride + q]);
        }
      }
      store(s, sum_each(dot));
    }
  }
}

// acc = acc * factor + weights times values, kVecs vectors of columns from the d-th on. With the first columns whole rows are fetched.
template <class Rows, int kQueries, int kVecs>
void update_stream_columns(const Panels& p, const StreamRows& values, int64_t d) {
  using Shape = StreamShape<kQueries>;
  constexpr int kTurn = Shape::kRows * kStreams;  // rows
  constexpr int kBytes = kVecs * static_cast<int>(kLanes * sizeof(typename Rows::Value));
  Vec acc[kQueries][kVecs];
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; ++q) {
    const Vec factor = set1(p.factor[q]);
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) acc[q][v] = load(p.acc + q * p.ld_v + d + v * kLanes) * factor;
  }
  const float* s = p.s;
  for (int64_t i = 0; i < values.n; i += Shape::kRows) {
    for (int j = 0; j < kTurn; ++j, s += Shape::kStride) {
      const int stream = j % kStreams;
      const std::byte* row = values.row(stream, i + j / kStreams);
      if (d == 0) {
        const char* then = reinterpret_cast<const char*>(row) + values.ahead(stream, i);
        for (size_t b = 0; b < values.row_bytes; b += 64) _mm_prefetch(then + b, _MM_HINT_T1);
      }
      fetch_into_l1<kBytes>(row + d * static_cast<int64_t>(sizeof(typename Rows::Value)));
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

template <class Rows, int kQueries, int kVecs>
void update_streams_from(const Panels& p, const StreamRows& values, int64_t d) {
  for (; d + kVecs * kLanes <= p.ld_v; d += kVecs * kLanes)
    update_stream_columns<Rows, kQueries, kVecs>(p, values, d);
  if constexpr (kVecs > 1) {
    if (d < p.ld_v) update_streams_from<Rows, kQueries, kVecs / 2>(p, values, d);
  }
}
template <class Rows, int kQueries>
void update_streams(const Panels& p, const StreamRows& values) {
  update_streams_from<Rows, kQueries, static_cast<int>(kLanes) / stride_of(kQueries)>(p, values, 0);
}

using StreamFn = void (*)(const Panels&, const StreamRows&);
struct StreamFns {
  StreamFn dot, update;
};

template <class Rows>
StreamFns stream_fns(int64_t n_queries) {
  return fns_of_queries(n_queries, [](auto n) { return StreamFns{dot_streams<Rows, n.value>, update_streams<Rows, n.value>}; });
}
StreamFns stream_fns_of(DType dtype, int64_t n_queries) {
  switch (dtype) {
    case DType::F16: return stream_fns<RowsF16>(n_queries);
    case DType::BF16: return stream_fns<RowsBF16>(n_queries);
    default: return stream_fns<RowsF32>(n_queries);
  }
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
