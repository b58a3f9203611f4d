// Products of many tokens with quantized weights on the tensor cores' integer units (mma.sync m16n8k32, s8):
// y^T = W x^T, rows of W being the M of a fragment and tokens the N.
//
// A block of 4 warps makes a tile of 64 rows x 32 or 64 tokens; warp (i, j) of 2 x 2 makes 32 rows of it for
// half of its tokens. Columns go by in stages of 4 blocks of 32. What a stage needs is copied to shared
// memory as it lies in device memory, several stages ahead (cp.async): the bytes of the codes are unpacked by
// the lane that feeds them to the tensor cores, where layout.h puts them in just the order of a fragment:
// word w of a half is what lane 4g + w wants of row g. Scales become floats one stage ahead, on their way
// through registers. Every 32 columns the integer sums are scaled into float accumulators.
//
// Floors, per 64 rows x 64 tokens x 32 columns: 32 fragments' products of 4096 multiply-adds, at about 22
// issue slots each as compiled for sm_90 (12 are the scaling, 4 feed the fragments, 6 the stages): on four
// schedulers of each of 132 multiprocessors at 1.7 GHz some 330 tera-operations a second, of the 1000 or so
// that mma.sync could do. Shared memory is read 2.5 KB a warp and 32 columns, a quarter of that time.
//
// Everything but the copies, the shuffle of ldmatrix and mma itself is written for the host too, where tests
// run it.
#pragma once

#include "ggml-cuda/formats.h"
#include "ggml-cuda/products.h"

namespace tandem::cuda {

inline constexpr int kTileRows = 64;
inline constexpr int kMatmulThreads = 128;
inline constexpr int kStageBlocks = 4;  // of 32 columns
inline constexpr int kMaxStages = 4;

// A tile of a grouped product: tokens first .. first + count - 1 of the order in which they are grouped, all
// of one expert.
struct TokenTile {
  int expert, first, count;
};

enum class MatmulStore : uint8_t {
  result,     // y = sums + bias + residual
  partial,    // sums of a slice of the columns, to partial
  with_gate,  // y = gated(y, sums + bias): y holds the gate's product
};

struct MatmulArgs {
  DeviceWeight w;
  Activations x;                    // [rows of x, k]
  const float* bias = nullptr;      // [m], of every expert, or null
  const float* factors = nullptr;   // [n_expert] or null, of the products; not of `partial`
  const float* residual = nullptr;  // [n, m] or null; may be y
  float* y = nullptr;               // [n, m]
  float* partial = nullptr;         // [n_slices, n, m]
  int n = 0;
  int n_slices = 1;  // parts that the columns are cut in, the grid's z
  int n_stages = 2;  // in shared memory
  MatmulStore store = MatmulStore::result;
  Activation activation = Activation::silu;
  // Grouped by expert: tiles of tokens by the grid's y; row_of [n] is the row of x that each token is.
  const TokenTile* tiles = nullptr;
  const int* n_tiles = nullptr;
  const int* row_of = nullptr;
};

// Stages of a slice of the columns: first, count.
struct StageRange {
  int first, count;
};
TANDEM_HD constexpr StageRange stages_of_slice(int k, int slice, int n_slices) {
  const int blocks = k / kBlockColumns, stages = (blocks + kStageBlocks - 1) / kStageBlocks;
  const int first = static_cast<int>(static_cast<int64_t>(stages) * slice / n_slices);
  const int last = static_cast<int>(static_cast<int64_t>(stages) * (slice + 1) / n_slices);
  return {first, last - first};
}

// A row of pieces in shared memory: 4 blocks, and 16 bytes to keep rows 0..7 in different banks where pieces
// are of 16.
TANDEM_HD constexpr int stage_row_bytes(int piece) {
  return piece * kStageBlocks + (piece == 16 ? 16 : 0);
}

// Bytes of the codes of row g (already offset) as a fragment wants them: with the code's offset subtracted.
template <DType T>
TANDEM_HD inline uint32_t signed_codes(uint32_t word) {
  constexpr uint32_t offsets = 0x01010101u * Format<T>::kCodeOffset;
  if constexpr (Format<T>::kCodeOffset == 0) return word;
  return ((word | 0x80808080u) - offsets) ^ 0x80808080u;  // bytes below 128: no borrow crosses them
}

// Word w of both halves of a block whose low and high pieces are in shared memory; what a dtype does not have is not read.
template <DType T>
TANDEM_HD inline CodeWords staged_codes(const uint32_t* low, const uint32_t* high, uint32_t scale, int w,
                                        const uint32_t* grid) {
  using F = Format<T>;
  uint32_t high_a = 0, high_b = 0;
  if constexpr (F::kGrid)
    return unpack_word<T>(low[0], F::kBytes.low == 8 ? low[1] : 0, F::kBytes.high != 0 ? high[0] : 0, 0, w, scale,
                          SharedGrid{grid});
  if constexpr (T == DType::Q8_0) return unpack_word<T>(low[w], high[w], 0, 0, w);
  if constexpr (F::kBytes.high != 0) high_a = high[0];
  if constexpr (F::kBytes.high == 8) high_b = high[1];
  if constexpr (F::kTwoBits) return unpack_word<T>(low[0], low[1], high_a, high_b, w);
  if constexpr (F::kOneBit) return unpack_word<T>(low[0], 0, 0, 0, w);
  return unpack_word<T>(low[w], 0, high_a, high_b, w);
}

// kPairs pairs of fragments of 8 tokens a warp: tiles of 32 * kPairs tokens.
template <DType T, int kPairs>
struct Matmul {
  using F = Format<T>;
  static constexpr int kTokens = 32 * kPairs;
  static constexpr int kHalfScales = F::kHalves ? 2 : 1;
  // Floats of a row's or a token's block: scales then minimums; scale then scale * sums.
  static constexpr int kCodeBitsAt =
      kHalfScales * (F::kMinimum ? 2 : 1);  // the scale piece, where codes want it
  static constexpr int kRowFloats = kCodeBitsAt + (F::kCodesInScale ? 1 : 0);
  static constexpr int kTokenFloats = !F::kMinimum ? 1 : F::kHalves ? 4 : 2;

  // Offsets of a stage's arrays.
  static constexpr int kLowRow = stage_row_bytes(F::kBytes.low), kHighRow = stage_row_bytes(F::kBytes.high);
  static constexpr int kTokenRow = 2 * 16 * kStageBlocks + 16;  // both halves
  static constexpr int kHighAt = kTileRows * kLowRow, kTokensAt = kHighAt + kTileRows * kHighRow;
  static constexpr int kStageBytes = kTokensAt + kTokens * kTokenRow;
  // Offsets in the floats of a stage, two of which there are: [block][row][kRowFloats],
  // [block][token][kTokenFloats].
  static constexpr int kTokenFloatsAt = kStageBlocks * kTileRows * kRowFloats;
  static constexpr int kScaleFloats = kTokenFloatsAt + kStageBlocks * kTokens * kTokenFloats;
  static constexpr int shared_bytes(int n_stages) {
    return n_stages * kStageBytes + 2 * 4 * kScaleFloats + 4 * kTokens + 4 * grid_entries(T);
  }

  // The tile that a block of the grid makes.
  struct Tile {
    Planes planes;  // of the expert
    int n_blocks;   // of a row
    int m, row0;
    int token0, n_tokens;
  };

  // The pieces that a thread copies in every stage: block thread % 4 of some rows and tokens, as indices
  // within the first stage.
  struct Cursor {
    static constexpr int kRows = kTileRows * kStageBlocks / kMatmulThreads;
    static constexpr int kHalfTokens = kTokens * 2 * kStageBlocks / kMatmulThreads;
    static constexpr int kMetas = kTokens * kStageBlocks / kMatmulThreads;
    uint32_t row[kRows];         // blocks of the weight: rows thread / 4, + 32
    uint32_t half[kHalfTokens];  // 16 bytes of x: half thread / 4 % 2 of tokens thread / 8, + 16, ...
    uint32_t meta[kMetas];       // of tokens thread / 4, + 32
  };

  // x_rows [kTokens]: rows of x of the tile's tokens. Rows past the matrix's last read the last; they are not
  // stored.
  TANDEM_HD static Cursor cursor_of(const Tile& tile, const int* x_rows, int thread) {
    Cursor c;
    const auto n_blocks = static_cast<uint32_t>(tile.n_blocks),
               b = static_cast<uint32_t>(thread % kStageBlocks);
    for (int i = 0; i < Cursor::kRows; ++i) {
      const int row = tile.row0 + thread / kStageBlocks + i * (kMatmulThreads / kStageBlocks);
      c.row[i] = static_cast<uint32_t>(row < tile.m ? row : tile.m - 1) * n_blocks + b;
    }
    const auto half = static_cast<uint32_t>(thread / kStageBlocks % 2);
    for (int i = 0; i < Cursor::kHalfTokens; ++i) {
      const int token = half_token(thread, i);
      c.half[i] =
          token < tile.n_tokens ? (2 * static_cast<uint32_t>(x_rows[token]) + half) * n_blocks + b : 0;
    }
    for (int i = 0; i < Cursor::kMetas; ++i) {
      const int token = meta_token(thread, i);
      c.meta[i] = token < tile.n_tokens ? static_cast<uint32_t>(x_rows[token]) * n_blocks + b : 0;
    }
    return c;
  }
  TANDEM_HD static int half_token(int thread, int i) {
    return thread / (2 * kStageBlocks) + i * (kMatmulThreads / (2 * kStageBlocks));
  }
  TANDEM_HD static int meta_token(int thread, int i) {
    return thread / kStageBlocks + i * (kMatmulThreads / kStageBlocks);
  }

  // Copies the thread's share of a stage: calls copy.template operator()<bytes>(offset in the stage, from,
  // valid); what is not valid is filled with zeros.
  template <class Copy>
  TANDEM_HD static void copy_stage(const Tile& tile, const Activations& x, const Cursor& c, int stage,
                                   int thread, Copy&& copy) {
    const int b = thread % kStageBlocks, half = thread / kStageBlocks % 2;
    const uint32_t block0 = static_cast<uint32_t>(stage) * kStageBlocks;
    const bool valid = static_cast<int>(block0) + b < tile.n_blocks;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int i = 0; i < Cursor::kRows; ++i) {
      const int row = thread / kStageBlocks + i * (kMatmulThreads / kStageBlocks);
      const uint64_t piece = valid ? c.row[i] + block0 : 0;
      copy.template operator()<F::kBytes.low>(row * kLowRow + b * F::kBytes.low,
                                              tile.planes.low + piece * F::kBytes.low, valid);
      if constexpr (F::kBytes.high != 0) {
        copy.template operator()<F::kBytes.high>(kHighAt + row * kHighRow + b * F::kBytes.high,
                                                 tile.planes.high + piece * F::kBytes.high, valid);
      }
    }
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int i = 0; i < Cursor::kHalfTokens; ++i) {
      const int token = half_token(thread, i);
      const bool there = valid && token < tile.n_tokens;
      const uint64_t piece = there ? c.half[i] + block0 : 0;
      copy.template operator()<16>(kTokensAt + token * kTokenRow + (half * kStageBlocks + b) * 16,
                                   x.q + piece * 16, there);
    }
  }

  // A thread's share of the scales of a stage, on their way from device memory to floats in shared memory.
  struct RawScales {
    uint32_t scale[Cursor::kRows];
    uint32_t super[Cursor::kRows][4];
    BlockMeta meta[Cursor::kMetas];
  };

  TANDEM_HD static RawScales load_scales(const Tile& tile, const Activations& x, const Cursor& c, int stage,
                                         int thread) {
    RawScales raw{};
    const uint32_t block0 = static_cast<uint32_t>(stage) * kStageBlocks;
    if (static_cast<int>(block0) + thread % kStageBlocks >= tile.n_blocks) return raw;  // zeros
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int i = 0; i < Cursor::kRows; ++i) {
      const uint32_t piece = c.row[i] + block0;
      load_scale<T>(tile.planes, piece, &raw.scale[i]);
      load_piece<F::kBytes.super>(tile.planes.super, piece / kSuperBlocks, raw.super[i]);
    }
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int i = 0; i < Cursor::kMetas; ++i) {
      if (meta_token(thread, i) < tile.n_tokens) raw.meta[i] = load_meta(x.meta + (c.meta[i] + block0));
    }
    return raw;
  }

  TANDEM_HD static void store_scales(const RawScales& raw, int stage, int thread, float* floats) {
    const int b = thread % kStageBlocks;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int i = 0; i < Cursor::kRows; ++i) {
      const int row = thread / kStageBlocks + i * (kMatmulThreads / kStageBlocks);
      const BlockScales s =
          block_scales<T>(raw.scale[i], raw.super[i], (stage * kStageBlocks + b) % kSuperBlocks);
      float* to = floats + (b * kTileRows + row) * kRowFloats;
      for (int h = 0; h < kHalfScales; ++h) {
        to[h] = s.scale[h];
        if constexpr (F::kMinimum) to[kHalfScales + h] = s.minimum[h];
      }
      if constexpr (F::kCodesInScale) to[kCodeBitsAt] = std::bit_cast<float>(raw.scale[i]);
    }
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int i = 0; i < Cursor::kMetas; ++i) {
      const BlockMeta& meta = raw.meta[i];
      float* to = floats + kTokenFloatsAt + (b * kTokens + meta_token(thread, i)) * kTokenFloats;
      to[0] = meta.scale;
      if constexpr (F::kMinimum && F::kHalves) {
        to[1] = meta.scale * static_cast<float>(meta.sums[0]);
        to[2] = meta.scale * static_cast<float>(meta.sums[1]);
      } else if constexpr (F::kMinimum) {
        to[1] = meta.scale * static_cast<float>(meta.sums[0] + meta.sums[1]);
      }
    }
  }

  // Fragment A of 16 rows from `row` of the tile on, block b of the stage. grid: as SharedGrid's words.
  TANDEM_HD static void fragment_a(const std::byte* stage, const float* floats, int row, int b, int lane,
                                   uint32_t* a, const uint32_t* grid = nullptr) {
    const int g = lane / 4, w = lane % 4;
    for (int i = 0; i < 2; ++i) {
      const CodeWords codes = codes_of(stage, floats, row + g + 8 * i, b, w, grid);
      a[i] = signed_codes<T>(codes.first);
      a[2 + i] = signed_codes<T>(codes.second);
    }
  }

  TANDEM_HD static CodeWords codes_of(const std::byte* stage, const float* floats, int row, int b, int w,
                                      const uint32_t* grid) {
    const auto* low = reinterpret_cast<const uint32_t*>(stage + row * kLowRow + b * F::kBytes.low);
    const auto* high =
        reinterpret_cast<const uint32_t*>(stage + kHighAt + row * kHighRow + b * F::kBytes.high);
    uint32_t scale = 0;
    if constexpr (F::kCodesInScale) scale = std::bit_cast<uint32_t>(row_floats(floats, row, b)[kCodeBitsAt]);
    return staged_codes<T>(low, high, scale, w, grid);
  }

  // Where lane l points ldmatrix.x4 for the fragments B of tokens token .. token + 15: lanes 0..7 at the
  // first halves of the first eight tokens, 8..15 at their second halves, then the same for the other eight.
  // The four registers are then first and second half of fragment 0, first and second half of fragment 1.
  TANDEM_HD static int fragment_b_at(int token, int b, int lane) {
    const int matrix = lane / 8, row = token + matrix / 2 * 8 + lane % 8;
    return kTokensAt + row * kTokenRow + (matrix % 2 * kStageBlocks + b) * 16;
  }

  // Scales of the four rows (g, g + 8 of both fragments) and of the tokens of a lane.
  TANDEM_HD static const float* row_floats(const float* floats, int row, int b) {
    return floats + (b * kTileRows + row) * kRowFloats;
  }
  TANDEM_HD static const float* token_floats(const float* floats, int token, int b) {
    return floats + kTokenFloatsAt + (b * kTokens + token) * kTokenFloats;
  }

  // Adds the scaled integer sums of one row and token to their accumulator; sums [kHalfScales] of the halves.
  TANDEM_HD static float scaled(float accumulator, const int* sums, const float* row, const float* token) {
    float product = row[0] * static_cast<float>(sums[0]);
    if constexpr (F::kHalves) product += row[1] * static_cast<float>(sums[1]);
    accumulator += token[0] * product;
    if constexpr (F::kMinimum) {
      for (int h = 0; h < kHalfScales; ++h) accumulator -= row[kHalfScales + h] * token[1 + h];
    }
    return accumulator;
  }
};

// Row and token, within a warp's 16 x 8, of accumulator i of a lane.
TANDEM_HD constexpr int accumulator_row(int lane, int i) {
  return lane / 4 + i / 2 * 8;
}
TANDEM_HD constexpr int accumulator_token(int lane, int i) {
  return lane % 4 * 2 + i % 2;
}

TANDEM_HD inline void store_sum(const MatmulArgs& args, int slice, int expert, int token, int row,
                                float sum) {
  const int64_t at = static_cast<int64_t>(token) * args.w.m + row;
  if (args.store == MatmulStore::partial) {
    args.partial[static_cast<int64_t>(slice) * args.n * args.w.m + at] = sum;
    return;
  }
  if (args.factors) sum *= args.factors[expert];
  if (args.bias) sum += args.bias[static_cast<int64_t>(expert) * args.w.m + row];
  if (args.store == MatmulStore::with_gate) {
    args.y[at] = gated(args.activation, args.y[at], sum);
  } else {
    args.y[at] = args.residual ? args.residual[at] + sum : sum;
  }
}

}  // namespace tandem::cuda
