// Products with block quantized weights: who unpacks what when (linear_layout.h has the layouts).
//
// Floors. Decode: weight bytes / memory bandwidth. Prefill: n * m * k multiply-adds at 128 a cycle (64 lanes, two
// ports), times what scales add (linear_tile.h).
#include <cstring>

#include "base/error.h"
#include "cpu/avx512/linear_layout.h"
#include "cpu/avx512/linear_simd.h"
#include "cpu/avx512/linear_store.h"
#include "cpu/avx512/linear_tile.h"
#include "cpu/avx512/linear_unpack.h"

namespace tandem::cpu {
namespace TANDEM_ISA {
namespace {

// Strips whose panels stay in L2 together while the tiles pass by: each tile is then read from L3 once for all.
constexpr int64_t kStripsAtOnce = 4;
// Columns unpacked at a time where one tile is all there is: a panel of some 5 KB in L1. Longer ones take the
// prefetches out of step with the memory.
constexpr int64_t kChunkColumns = 256;
constexpr size_t kMaxChunkRowBytes = kChunkColumns / 32 * sizeof(BlockQ8_0);  // Q8_0 is the widest
// Chunks between a prefetch (into L2: L1's line buffers are few) and the use.
constexpr int64_t kChunksAhead = 3;

// Weights that will be wanted soon: `bytes` of each row of a strip. The hardware follows neither 16 rows at once nor
// the step from strip to strip.
struct Ahead {
  const std::byte* first = nullptr;  // row 0
  size_t stride = 0, bytes = 0;
  int64_t n_rows = 0;
};

TANDEM_INLINE void prefetch_rows(const Ahead& ahead, int64_t row0, int64_t row1) {
  for (int64_t r = row0; r < min64(row1, ahead.n_rows); ++r) {
    const std::byte* p = ahead.first + static_cast<size_t>(r) * ahead.stride;
    for (size_t i = 0; i < ahead.bytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(p + i), _MM_HINT_T1);
  }
}

// What the driver needs to know of a dtype.
struct Format {
  Shape shape;
  size_t unit_bytes;
  void (*unpack)(const StripRows& rows, int64_t n_units, __m512i* panel, const Ahead& ahead);
  const TileKernel* tile_kernels;  // by tokens
};

template <class Unpack>
void unpack_units(const StripRows& rows, int64_t n_units, __m512i* panel, const Ahead& ahead) {
  size_t at = 0;
  const int64_t rows_per_unit = (kStrip + n_units - 1) / n_units;
  int64_t u = 0;
  const auto look_ahead = [&](int64_t unit) __attribute__((always_inline)) {
    prefetch_rows(ahead, unit * rows_per_unit, (unit + 1) * rows_per_unit);
  };
  if constexpr (requires { Unpack::group; }) {
    for (; u + Unpack::group <= n_units; u += Unpack::group) {
      Unpack::unpack_group(rows, at, panel, [&](int i) __attribute__((always_inline)) { look_ahead(u + i); });
      at += Unpack::group * Unpack::unit_bytes;
      panel += Unpack::group * Unpack::shape.unit_vectors();
    }
  }
  for (; u < n_units; ++u) {
    look_ahead(u);
    Unpack::unpack(rows, at, panel);
    at += Unpack::unit_bytes;
    panel += Unpack::shape.unit_vectors();
  }
}

template <class Unpack>
constexpr Format format_of() {
  return {Unpack::shape, Unpack::unit_bytes, unpack_units<Unpack>, TileKernels<Unpack::shape>::by_tokens};
}

const Format& format(DType dtype) {
  static constexpr Format q4_0 = format_of<UnpackQ4_0>(), q4_1 = format_of<UnpackQ4_1>();
  static constexpr Format q5_0 = format_of<UnpackQ5_0>(), q5_1 = format_of<UnpackQ5_1>();
  static constexpr Format q8_0 = format_of<UnpackQ8_0>(), iq4_nl = format_of<UnpackIQ4_NL>();
  static constexpr Format mxfp4 = format_of<UnpackMXFP4>(), q2_k = format_of<UnpackQ2_K>();
  static constexpr Format q3_k = format_of<UnpackQ3_K>(), q4_k = format_of<UnpackQ4_K>();
  static constexpr Format q5_k = format_of<UnpackQ5_K>(), q6_k = format_of<UnpackQ6_K>();
  static constexpr Format iq4_xs = format_of<UnpackIQ4_XS>();
  switch (dtype) {
    case DType::Q4_0: return q4_0;
    case DType::Q4_1: return q4_1;
    case DType::Q5_0: return q5_0;
    case DType::Q5_1: return q5_1;
    case DType::Q8_0: return q8_0;
    case DType::IQ4_NL: return iq4_nl;
    case DType::MXFP4: return mxfp4;
    case DType::Q2_K: return q2_k;
    case DType::Q3_K: return q3_k;
    case DType::Q4_K: return q4_k;
    case DType::Q5_K: return q5_k;
    case DType::Q6_K: return q6_k;
    case DType::IQ4_XS: return iq4_xs;
    default: break;
  }
  TANDEM_CHECK(!"dtype has no kernels");
  return q4_0;
}

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

// Derives from a tile's sums what this dtype starts its integer sums from, or multiplies its mins with.
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
    for (int64_t i = 0; i < n_blocks * T; ++i) to[i] = args.scale[i] * static_cast<float>(static_cast<int32_t>(sum[i]));
  } else if (shape.offset == 0) {
    return;
  } else if (shape.unit == 32) {
    for (int64_t i = 0; i < n_blocks * T; ++i) start[i] = factor * sum[i];
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

// Unpacks a chunk of a strip. The last rows of a matrix, fewer than a strip, are unpacked from a copy; what the copy
// holds behind them is computed with and never stored.
TANDEM_INLINE void unpack_chunk(const LinearCall& call, const Format& f, size_t stride, int64_t row, int64_t unit0,
                                int64_t n_units, __m512i* panel, std::byte* copy, const Ahead& ahead) {
  const std::byte* from = call.w + static_cast<size_t>(row) * stride + static_cast<size_t>(unit0) * f.unit_bytes;
  if (call.m - row >= kStrip) return f.unpack({from, stride}, n_units, panel, ahead);
  const size_t row_size = static_cast<size_t>(n_units) * f.unit_bytes;
  for (int64_t r = 0; r < call.m - row; ++r) {
    std::memcpy(copy + static_cast<size_t>(r) * row_size, from + static_cast<size_t>(r) * stride, row_size);
  }
  f.unpack({copy, row_size}, n_units, panel, ahead);
}

// The same tile, from unit on.
TANDEM_INLINE TileArgs from_unit(const TileArgs& whole, const Shape& shape, int64_t unit, int64_t T) {
  TileArgs args = whole;
  args.q += unit * (shape.unit / 4) * T;
  args.scale += unit * T;
  args.start += unit * shape.subs() * T;
  args.min_scale += unit * T;
  args.sums += unit * (shape.mins / 2) * T;
  return args;
}

// One tile: the panel of a chunk of columns is used where it was made, in L1.
void multiply_one_tile(const LinearCall& call, const Format& f, int64_t row0, int64_t row1, std::byte* scratch) {
  const Scratch parts = scratch_parts(f, call.n, call.k);
  float* acc = reinterpret_cast<float*>(scratch);
  std::byte* copy = scratch + parts.acc_bytes;
  std::byte* derived = copy + parts.rows_bytes;
  __m512i* panel = reinterpret_cast<__m512i*>(derived + parts.derived_bytes);
  const TileLayout layout{f.shape.unit, call.k};
  TileArgs whole{};
  derive(f.shape, layout, call.x, call.n, derived, whole);
  whole.acc = acc;
  whole.panel = panel;
  const TileKernel kernel = f.tile_kernels[call.n];
  const int64_t n_units = call.k / f.shape.unit, step = max64(1, kChunkColumns / f.shape.unit);
  const size_t stride = static_cast<size_t>(n_units) * f.unit_bytes;
  // The chunk at (row r, unit u) counts on from the one before, over the end of a strip.
  const auto ahead_at = [&](int64_t r, int64_t u) {
    while (u >= n_units) u -= (n_units + step - 1) / step * step, r += kStrip;
    if (r >= row1) return Ahead{};
    return Ahead{call.w + static_cast<size_t>(r) * stride + static_cast<size_t>(u) * f.unit_bytes, stride,
                 static_cast<size_t>(min64(step, n_units - u)) * f.unit_bytes, min64(kStrip, row1 - r)};
  };
  for (int64_t i = 0; i < kChunksAhead; ++i) prefetch_rows(ahead_at(row0, i * step), 0, kStrip);
  for (int64_t r = row0; r < row1; r += kStrip) {
    clear(acc, call.n);
    for (int64_t u = 0; u < n_units; u += step) {
      TileArgs args = from_unit(whole, f.shape, u, call.n);
      args.n_units = min64(step, n_units - u);
      unpack_chunk(call, f, stride, r, u, args.n_units, panel, copy, ahead_at(r, u + kChunksAhead * step));
      kernel(args);
    }
    store_tile(call, r, 0, call.n, acc);
  }
}

// Many tiles: whole strips are unpacked, and all tiles pass over them.
void multiply_tiles(const LinearCall& call, const Format& f, int64_t row0, int64_t row1, std::byte* scratch) {
  const Scratch parts = scratch_parts(f, call.n, call.k);
  float* acc = reinterpret_cast<float*>(scratch);
  std::byte* copy = scratch + parts.acc_bytes;
  std::byte* derived = copy + parts.rows_bytes;
  std::byte* panels = derived + parts.derived_bytes;
  const TileLayout layout{f.shape.unit, call.k};
  const int64_t T = tile_tokens(call.n), n_units = call.k / f.shape.unit;
  const size_t stride = static_cast<size_t>(n_units) * f.unit_bytes;
  for (int64_t first = row0; first < row1; first += kStrip * kStripsAtOnce) {
    const int64_t n_strips = min64(kStripsAtOnce, (row1 - first + kStrip - 1) / kStrip);
    for (int64_t s = 0; s < n_strips; ++s) {
      const int64_t r = first + s * kStrip;
      __m512i* panel = reinterpret_cast<__m512i*>(panels + static_cast<size_t>(s) * parts.panel_bytes);
      const int64_t step = kChunkColumns / f.shape.unit;
      for (int64_t u = 0; u < n_units; u += step) {
        unpack_chunk(call, f, stride, r, u, min64(step, n_units - u), panel + u * f.shape.unit_vectors(), copy, {});
      }
    }
    for (int64_t token0 = 0; token0 < call.n; token0 += T) {
      const int64_t tokens = min64(T, call.n - token0);
      TileArgs args{};
      derive(f.shape, layout, call.x + 4 * token0 * layout.token_words(), tokens, derived, args);
      args.acc = acc;
      args.n_units = n_units;
      for (int64_t s = 0; s < n_strips; ++s) {
        args.panel = reinterpret_cast<const __m512i*>(panels + static_cast<size_t>(s) * parts.panel_bytes);
        clear(acc, tokens);
        f.tile_kernels[tokens](args);
        store_tile(call, first + s * kStrip, token0, tokens, acc);
      }
    }
  }
}

}  // namespace

size_t quantized_scratch_bytes(DType dtype, int64_t n, int64_t k) { return scratch_parts(format(dtype), n, k).total(); }

void multiply_quantized(const LinearCall& call, int64_t row0, int64_t row1, std::byte* scratch) {
  const Format& f = format(call.dtype);
  if (call.n <= kMaxTile) {
    multiply_one_tile(call, f, row0, row1, scratch);
  } else {
    multiply_tiles(call, f, row0, row1, scratch);
  }
}

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
