// Products with block-quantized weights: the order of unpacking and multiplying (layouts: linear_layout.h), for the
// formats of linear_format.h and those of vbmi/.
//
// Floors. Decode: weight bytes / memory bandwidth. Prefill: n * m * k multiply-adds at 128 a cycle (64 lanes,
// two ports), times what scales add (linear_tile.h).
#pragma once

#include <cstring>

#include "cpu/avx512/linear_format.h"
#include "cpu/avx512/linear_layout.h"
#include "cpu/avx512/linear_simd.h"
#include "cpu/avx512/linear_store.h"
#include "gguf/blocks.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// Strips whose panels stay in L2 together while the tiles pass: each tile is read from L3 once for all.
constexpr int64_t kStripsAtOnce = 4;
// Columns unpacked at a time, of all rows of a strip, before the next.
constexpr int64_t kChunkColumns = 256;
constexpr size_t kMaxChunkRowBytes = kChunkColumns / 32 * sizeof(BlockQ8_0);  // Q8_0 is the widest

// Parts of a worker's scratch.
struct Scratch {
  size_t acc_bytes, rows_bytes, derived_bytes, panel_bytes, n_panels;  // panel_bytes: of one strip
  size_t total() const { return acc_bytes + rows_bytes + derived_bytes + panel_bytes * n_panels; }
};

Scratch scratch_parts(const Format& f, int64_t n, int64_t k) {
  const int64_t columns = n <= kMaxTile ? min64(k, max64(kChunkColumns, f.shape.unit)) : k;
  Scratch s;
  s.acc_bytes = static_cast<size_t>(kMaxTile) * 64;
  s.rows_bytes = static_cast<size_t>(kStrip) * kMaxChunkRowBytes;
  s.derived_bytes = align64(static_cast<size_t>(k / min64(f.shape.sub, 32) * kMaxTile) * 4);
  s.panel_bytes = static_cast<size_t>(columns / f.shape.unit * f.shape.unit_vectors()) * 64;
  s.n_panels = n <= kMaxTile ? 1 : kStripsAtOnce;
  return s;
}

// Derives from a tile's sums the start of the integer sums for this dtype, or the factors of its mins.
TANDEM_INLINE void derive(const Shape& shape, const TileLayout& layout, const std::byte* tile, int64_t T,
                          std::byte* derived, TileArgs& args) {
  const uint32_t* words = reinterpret_cast<const uint32_t*>(tile);
  args.q = words;
  const uint32_t* scale = words + layout.q_words() * T;
  const uint32_t* sum = scale + layout.scale_words() * T;
  const uint32_t* sum32 = sum + layout.sum_words() * T;
  args.scale = reinterpret_cast<const float*>(scale);
  args.sums = shape.mins == 16 ? sum : sum32;
  args.start = reinterpret_cast<const int32_t*>(derived);
  args.min_scale = reinterpret_cast<const float*>(derived);
  uint32_t* start = reinterpret_cast<uint32_t*>(derived);  // unsigned: sums of a NaN's column may be anything
  const uint32_t factor = 0u - static_cast<uint32_t>(shape.offset);
  const auto low = [](uint32_t pair) { return static_cast<uint32_t>(static_cast<int16_t>(pair & 0xffff)); };
  const auto high = [](uint32_t pair) { return static_cast<uint32_t>(static_cast<int16_t>(pair >> 16)); };
  const int64_t n_blocks = layout.k / 32;
  if (shape.mins == 1) {
    float* to = reinterpret_cast<float*>(derived);
    for (int64_t i = 0; i < n_blocks * T; ++i)
      to[i] = args.scale[i] * static_cast<float>(static_cast<int32_t>(low(sum[i]) + high(sum[i])));
  } else if (shape.offset == 0) {
    return;
  } else if (shape.sub == 16) {
    for (int64_t b = 0; b < n_blocks; ++b) {
      for (int64_t t = 0; t < T; ++t) {
        start[2 * b * T + t] = factor * low(sum[b * T + t]);
        start[(2 * b + 1) * T + t] = factor * high(sum[b * T + t]);
      }
    }
  } else if (shape.sub == 32) {
    for (int64_t i = 0; i < n_blocks * T; ++i) start[i] = factor * (low(sum[i]) + high(sum[i]));
  } else {
    for (int64_t b = 0; b < layout.k / 256; ++b) {
      for (int64_t t = 0; t < T; ++t) {
        uint32_t total = 0;
        for (int64_t i = 8 * b; i < 8 * b + 8; ++i) total += low(sum[i * T + t]) + high(sum[i * T + t]);
        start[b * T + t] = factor * total;
      }
    }
  }
}

// The strips of a matrix, chunk by chunk.
class Chunks {
 public:
  Chunks(const LinearCall& call, const Format& f, std::byte* copy)
      : call_(call),
        f_(f),
        copy_(copy),
        n_units_(call.k / f.shape.unit),
        stride_(f.bytes(n_units_)) {}

  int64_t n_units() const { return n_units_; }
  int64_t step() const { return kChunkColumns / f_.shape.unit; }  // units of a chunk

  // Returns the chunk of the strip at `row` that starts at `unit`. Fewer last rows than a strip are copied;
  // what the copy holds after them is computed but never stored.
  Chunk at(int64_t row, int64_t unit) const {
    const std::byte* from = address(row, unit);
    Chunk chunk{{from, stride_}, min64(step(), n_units_ - unit), ahead(row, unit)};
    if (call_.m - row >= kStrip) return chunk;
    const size_t row_size = f_.bytes(chunk.n_units);
    for (int64_t r = 0; r < call_.m - row; ++r) {
      std::memcpy(copy_ + static_cast<size_t>(r) * row_size, from + static_cast<size_t>(r) * stride_,
                  row_size);
    }
    chunk.rows = {copy_, row_size};
    return chunk;
  }

  // The strip of the next group at the place of this one, whose group has n_strips. Behind the call's rows it is the next item's.
  const std::byte* of_next_group(int64_t row, int64_t n_strips) const {
    return address(row + kStrip * n_strips, 0);
  }

 private:
  const std::byte* address(int64_t row, int64_t unit) const {
    return call_.w + static_cast<size_t>(row) * stride_ + f_.bytes(unit);
  }
  // The same part of the next strip, in the order of memory: with 16 rows side by side a token takes 7 to 20% longer. The
  // strip behind an item is fetched, too, as the worker most likely goes on there; behind the last one, what is loaded.
  const std::byte* ahead(int64_t row, int64_t unit) const {
    const std::byte* strip = row + kStrip < call_.m ? address(row + kStrip, 0) : address(row, 0);
    return strip + f_.bytes(unit) * kStrip;
  }

  const LinearCall& call_;
  const Format& f_;
  std::byte* copy_;
  int64_t n_units_;
  size_t stride_;
};

// Lets a tile's kernel prefetch n_bytes from `ahead` on, too.
TANDEM_INLINE void fetch_with_tile(const Format& f, const std::byte* ahead, size_t n_bytes, TileArgs& args) {
  args.ahead = ahead;
  args.ahead_bytes = n_bytes / static_cast<size_t>(args.n_units * f.shape.subs());
}

// One tile: uses each chunk of weights where it was unpacked, in registers or L1.
void multiply_one_tile(const LinearCall& call, const Format& f, int64_t row0, int64_t row1,
                       std::byte* scratch) {
  const Scratch parts = scratch_parts(f, call.n, call.k);
  float* acc = reinterpret_cast<float*>(scratch);
  std::byte* copy = scratch + parts.acc_bytes;
  std::byte* derived = copy + parts.rows_bytes;
  __m512i* panel = reinterpret_cast<__m512i*>(derived + parts.derived_bytes);
  TileArgs whole{};
  derive(f.shape, TileLayout{f.shape.unit, call.k}, call.x, call.n, derived, whole);
  whole.acc = acc;
  whole.panel = panel;
  const Chunks chunks(call, f, copy);
  const TileKernel kernel = f.tile_kernels[call.n];
  for (int64_t r = row0; r < row1; r += kStrip) {
    clear(acc, call.n);
    for (int64_t u = 0; u < chunks.n_units(); u += chunks.step()) {
      Chunk chunk = chunks.at(r, u);
      TileArgs args = from_unit(whole, f.shape, u, call.n);
      args.n_units = chunk.n_units;
      if (call.n == 1) {
        f.dot(chunk, args);
      } else {
        if (f.spreads_fetches()) {
          const size_t n_bytes = kStrip * f.bytes(chunk.n_units);
          chunk.ahead_halves = 1;
          fetch_with_tile(f, chunk.ahead + n_bytes / 2, n_bytes / 2, args);
        }
        f.unpack(chunk, panel);
        kernel(args);
      }
    }
    store_tile(call, r, 0, call.n, acc);
  }
}

// Many tiles: unpacks whole strips and runs all tiles over them.
void multiply_tiles(const LinearCall& call, const Format& f, int64_t row0, int64_t row1, std::byte* scratch) {
  const Scratch parts = scratch_parts(f, call.n, call.k);
  float* acc = reinterpret_cast<float*>(scratch);
  std::byte* copy = scratch + parts.acc_bytes;
  std::byte* derived = copy + parts.rows_bytes;
  std::byte* panels = derived + parts.derived_bytes;
  const TileLayout layout{f.shape.unit, call.k};
  const Chunks chunks(call, f, copy);
  const int64_t T = tile_tokens(call.n);
  // The last tiles fetch the next strips, each a part of them. Fetched while strips were unpacked, a core of a Zen 4 could not have
  // all their lines in flight: sixteen tokens read Q4_K at 4.1 GB/s and Q8_0 at 6.8, where they now read 5.3 and 9.3. Other CPUs have
  // not been measured.
  const int64_t n_fetching = min64(4, (call.end_token() - call.token0 + T - 1) / T);
  const size_t part_bytes = kStrip * f.bytes(chunks.n_units()) / static_cast<size_t>(n_fetching);
  const auto panel_of = [&](int64_t strip) {
    return reinterpret_cast<__m512i*>(panels + static_cast<size_t>(strip) * parts.panel_bytes);
  };
  for (int64_t first = row0; first < row1; first += kStrip * kStripsAtOnce) {
    const int64_t n_strips = min64(kStripsAtOnce, (row1 - first + kStrip - 1) / kStrip);
    for (int64_t s = 0; s < n_strips; ++s) {
      for (int64_t u = 0; u < chunks.n_units(); u += chunks.step()) {
        Chunk chunk = chunks.at(first + s * kStrip, u);
        chunk.ahead_halves = 0;
        f.unpack(chunk, panel_of(s) + u * f.shape.unit_vectors());
      }
    }
    for (int64_t token0 = call.token0; token0 < call.end_token(); token0 += T) {
      const int64_t tokens = min64(T, call.end_token() - token0);
      const int64_t n_left = (call.end_token() - token0 + T - 1) / T;  // tiles
      TileArgs args{};
      derive(f.shape, layout, call.x + 4 * token0 * layout.token_words(), tokens, derived, args);
      args.acc = acc;
      args.n_units = chunks.n_units();
      for (int64_t s = 0; s < n_strips; ++s) {
        if (n_left <= n_fetching) {
          const std::byte* ahead = chunks.of_next_group(first + s * kStrip, n_strips);
          fetch_with_tile(f, ahead + static_cast<size_t>(n_left - 1) * part_bytes, part_bytes, args);
        }
        args.panel = panel_of(s);
        clear(acc, tokens);
        f.tile_kernels[tokens](args);
        store_tile(call, first + s * kStrip, token0, tokens, acc);
      }
    }
  }
}

size_t scratch_bytes_of(const Format& f, int64_t n, int64_t k) {
  return scratch_parts(f, n, k).total();
}

// Row by row.
void multiply_rows(const LinearCall& call, const Format& f, int64_t row0, int64_t row1) {
  f.row_kernels[call.n](call, row0, row1);
}

// See LinearKernels::multiply.
void multiply_format(const LinearCall& call, const Format& f, int64_t row0, int64_t row1,
                     std::byte* scratch) {
  if (f.by_rows(call.n)) {
    multiply_rows(call, f, row0, row1);
  } else if (call.n <= kMaxTile) {
    multiply_one_tile(call, f, row0, row1, scratch);
  } else {
    multiply_tiles(call, f, row0, row1, scratch);
  }
}

}  // namespace
}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
