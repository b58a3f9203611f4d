// What the driver of products (linear_drive.h) knows of a format, and the tables of formats. Each table is a file of its own, as its
// kernels are what takes long to compile.
#pragma once

#include "cpu/avx512/linear_layout.h"
#include "cpu/avx512/linear_simd.h"

namespace tandem::cpu {
namespace TANDEM_ISA {

// A chunk of a strip: n_units of 16 rows, and where to prefetch as many bytes meanwhile, or half of them, or none.
struct Chunk {
  StripRows rows;
  int64_t n_units;
  const std::byte* ahead;
  size_t ahead_halves = 2;
};

// A tile (linear_layout.h) from some unit on, with what its sums become for one dtype.
struct TileArgs {
  const __m512i* panel;
  const uint32_t* q;       // [k / 4][T]
  const float* scale;      // [k / unit][T]
  const int32_t* start;    // [k / sub][T] -offset * sum: where the integer sums start from
  const float* min_scale;  // [k / 32][T] scale * sum; mins == 1
  const uint32_t* sums;    // [k / 32 or k / 64][T] pairs of 16-bit sums; mins > 1
  int64_t n_units;
  float* acc;  // [T][16] added to
  // ahead_bytes more from `ahead` on are prefetched with each sub-block.
  const std::byte* ahead = nullptr;
  size_t ahead_bytes = 0;
};

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

// Multiplies a panel with a tile of T tokens.
using TileKernel = void (*)(const TileArgs&);
// Products of rows with a few tokens, without panels.
using RowKernel = void (*)(const LinearCall&, int64_t row0, int64_t row1);

// A dtype, as the driver (linear_drive.h) needs it.
struct Format {
  Shape shape;
  int64_t block_units;  // of a block of the file
  size_t block_bytes;
  void (*unpack)(const Chunk& chunk, __m512i* panel);
  const TileKernel* tile_kernels;                         // by tokens
  void (*dot)(const Chunk& chunk, const TileArgs& args);  // unpack and multiply with one token
  const RowKernel* row_kernels;                           // by tokens up to kMaxRowTokens; null: none
  int64_t narrow_tokens;                                  // most tokens of row_kernels if narrow_avx512()
  int64_t one_stream_tokens;                              // the same elsewhere, unless reads_in_streams()
  Order row_order;                                        // of their activations

  // Whether half of the next weights are fetched while these are unpacked and half while they are multiplied. Of types of more
  // than five bits a core could not have all lines in flight during unpacking: eight tokens read Q6_K at 10.3 instead of 7.5 GB/s
  // on a core of a Zen 4, Q8_0 at 15.6 instead of 12.9. Other CPUs have not been measured.
  bool spreads_fetches() const { return static_cast<int64_t>(block_bytes) * 8 > 5 * shape.unit * block_units; }
  // Of a row, whole blocks of it.
  size_t bytes(int64_t units) const { return static_cast<size_t>(units / block_units) * block_bytes; }
  bool by_rows(int64_t n) const {
    const int64_t most = narrow_avx512() ? narrow_tokens : reads_in_streams() ? kMaxRowTokens : one_stream_tokens;
    return row_kernels != nullptr && n <= most && row_kernels[n] != nullptr;
  }
};

// The tables. Null: of another one, or no kernels.
const Format* find_block_format(DType dtype);  // Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL
const Format* find_super_format(DType dtype);  // Q2_K to Q6_K, IQ4_XS
const Format* find_low_format(DType dtype);    // MXFP4, NVFP4, TQ1_0, TQ2_0, Q1_0, IQ1_S, IQ1_M

}  // namespace TANDEM_ISA
}  // namespace tandem::cpu
