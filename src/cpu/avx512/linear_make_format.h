// Makes a Format (linear_format.h) of what unpacks a dtype and of what multiplies its rows.
#pragma once

#include <type_traits>

#include "cpu/avx512/linear_format.h"
#include "cpu/avx512/linear_rows.h"
#include "cpu/avx512/linear_sink.h"
#include "cpu/avx512/linear_strip.h"
#include "cpu/avx512/linear_tile.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

template <class Unpack>
constexpr size_t bytes_of_pause = kStrip* Unpack::block_bytes / Unpack::pauses;

template <class Unpack>
void unpack_chunk(const Chunk& chunk, __m512i* panel) {
  size_t at = 0;
  int64_t u = 0;
  SomeAhead ahead{chunk.ahead, bytes_of_pause<Unpack> / 2 * chunk.ahead_halves};
  PanelSink<Unpack::shape, decltype(ahead)> sink{panel, ahead};
  if constexpr (requires { Unpack::group; }) {
    for (; u + Unpack::group <= chunk.n_units; u += Unpack::group) {
      Unpack::unpack_group(chunk.rows, at, sink);
      at += Unpack::group * Unpack::block_bytes;
      sink.panel += Unpack::group * Unpack::shape.unit_vectors();
    }
  }
  for (; u < chunk.n_units; u += block_units<Unpack>) {
    Unpack::unpack(chunk.rows, at, sink);
    at += Unpack::block_bytes;
    sink.panel += block_units<Unpack> * Unpack::shape.unit_vectors();
  }
}

template <class Unpack>
void dot_chunk(const Chunk& chunk, const TileArgs& whole) {
  constexpr Shape S = Unpack::shape;
  size_t at = 0;
  int64_t u = 0;
  Ahead<bytes_of_pause<Unpack>> ahead{chunk.ahead};
  __m512 sum = _mm512_load_ps(whole.acc);
  if constexpr (requires { Unpack::group; }) {
    for (; u + Unpack::group <= chunk.n_units; u += Unpack::group) {
      const TileArgs args = from_unit(whole, S, u, 1);
      DotSink<S, decltype(ahead)> sink(args, ahead, sum);
      Unpack::unpack_group(chunk.rows, at, sink);
      at += Unpack::group * Unpack::block_bytes;
    }
  }
  for (; u < chunk.n_units; u += block_units<Unpack>) {
    const TileArgs args = from_unit(whole, S, u, 1);
    DotSink<S, decltype(ahead)> sink(args, ahead, sum);
    Unpack::unpack(chunk.rows, at, sink);
    sink.finish();
    at += Unpack::block_bytes;
  }
  _mm512_store_ps(whole.acc, sum);
}

template <class Unpack, class Row = void>
constexpr Format format_of() {
  Format format{Unpack::shape,
                block_units<Unpack>,
                Unpack::block_bytes,
                unpack_chunk<Unpack>,
                TileKernels<Unpack::shape>::by_tokens.data(),
                dot_chunk<Unpack>,
                nullptr,
                0,
                0,
                Order::columns};
  if constexpr (!std::is_void_v<Row>) {
    format.row_kernels = RowKernels<Row>::by_tokens.data();
    format.narrow_tokens = Row::narrow_tokens;
    format.one_stream_tokens = one_stream_tokens<Row>;
    format.row_order = Row::order;
  }
  return format;
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
