// Products of 1 to 8 tokens: each weight is read once, and the read speed is all that matters.
//
// A block is 4 warps. A pair of rows (two neighbours of a matrix; or a row of the gate and the same row of
// the up matrix, for glu) belongs to 1, 2 or 4 warps, which share its columns: lane l of slice s of n takes
// the pieces 32 s + l, + 32 n, ... of both rows, a piece being a block of 32 columns of a quantized row (16
// bytes or so in one load) or 16 bytes of a row of floats. Lanes read consecutive pieces; the next pieces are
// requested before the current ones are used, and the first ones before the previous kernel has ended.
// Partial sums go through shuffles, then through shared memory, in a fixed order.
//
// The grid has no more blocks than the GPU runs at once. A block has several tasks (the pairs of 1, 2 or 4 rows that its
// warps can take), the same number as the others or one less, and requests pieces of the next while it adds up the
// sums of the last: so no part of the grid is left to run alone at the end. What the block will read after its first
// task goes to the L2 cache before the previous kernel has ended.
//
// Floor: the bytes of the weights over the memory's bandwidth (4096 x 4096 in Q4_K: 9.4 MB, 3.1 us at 3
// TB/s). At n = 1 unpacking and products take about a quarter of the issue slots meanwhile, at n = 8 dp4a
// comes near its own limit.
//
// A kernel is compiled for one dtype (matvec_kernels.h), so that its loop and its sums lie in registers alone: one for all dtypes calls
// its loops as functions, which keep their sums in memory and wait for it at every piece.
//
// The work of a thread also compiles for the host, except shuffles and barriers, so that tests can run it.
#pragma once

#include "ggml-cuda/dtypes.h"
#include "ggml-cuda/formats.h"
#include "ggml-cuda/made_bytes.h"
#include "ggml-cuda/matvec_grid.h"
#include "ggml-cuda/overlap.h"
#include "ggml-cuda/products.h"

namespace tandem::cuda {

inline constexpr int kMaxMatvecTokens = 8;
inline constexpr int kMaxMatvecWeights = 4;

// One weight of a launch and the destination of its results.
struct MatvecTarget {
  DeviceWeight w;
  const float* bias = nullptr;         // [m] or null
  const float* residual = nullptr;     // [n, m] or null; may be y itself
  float* y = nullptr;                  // [n, m]
  int first_block = 0;                 // of the launch's tasks, that is of this weight
  const float* expert_bias = nullptr;     // experts only: [n_expert, m] or null
  const float* expert_factors = nullptr;  // experts, not experts_down: [n_expert] or null, of the products
};

enum class MatvecMode : uint8_t {
  linear,        // targets are independent
  glu,           // target 0 is the gate, 1 the up matrix, of one dtype; results go to target 0's y
  experts_glu,   // the same for every pair; y is [n, n_used, m]
  experts_down,  // target 0; x is [n, n_used, k], weighted sums over the experts go to y
  experts,       // target 0 alone, for every pair; y is [n, n_used, m]
};

struct MatvecArgs {
  MatvecTarget targets[kMaxMatvecWeights];
  ProductInput input;
  const float* route = nullptr;  // [n, 2 * n_used], experts only
  int n = 0;                     // tokens
  int token0 = 0;                // of this launch, experts only
  int n_used = 1;
  int n_targets = 0;
  int slice_bits = 0;    // 1, 2 or 4 warps a pair
  int n_blocks = 0;      // tasks of all targets; mode linear or glu
  int n_prefetched = 0;  // tasks of a block that go to the L2 cache at its start
  MadeBytes made;        // of the results, mode glu only
  MatvecMode mode = MatvecMode::linear;
  Activation activation = Activation::silu;
};

// Rows of results whose bytes are made by the warp that stores the last of them.
inline constexpr int kMadeRows = 256;
constexpr bool makes_matvec_bytes(int m) {
  return m % kMadeRows == 0 && m / kMadeRows <= 1024;
}

TANDEM_HD constexpr bool is_paired(MatvecMode mode) {  // two rows of two matrices, rather than of one
  return mode == MatvecMode::glu || mode == MatvecMode::experts_glu;
}

// Pairs of rows of a matrix of m rows.
TANDEM_HD constexpr int n_pairs(MatvecMode mode, int m) {
  return is_paired(mode) ? m : (m + 1) / 2;
}

TANDEM_HD constexpr int pairs_per_block(int slice_bits) {
  return kMatvecWarps >> slice_bits;
}

// The pair and the slice of a warp, of block `block` of a target.
struct WarpShare {
  int pair, slice;
};
TANDEM_HD constexpr WarpShare warp_share(int block, int warp, int slice_bits) {
  return {block * pairs_per_block(slice_bits) + (warp >> slice_bits), warp & ((1 << slice_bits) - 1)};
}

TANDEM_HD constexpr uint32_t first_piece(WarpShare share, int lane) {
  return static_cast<uint32_t>(32 * share.slice + lane);
}

// The rows of a pair; a row that is not there reads the last one and is not stored.
TANDEM_HD constexpr int row_of_pair(MatvecMode mode, int pair, int which, int m) {
  const int row = is_paired(mode) ? pair : 2 * pair + which;
  return row < m ? row : m - 1;
}

TANDEM_HD inline int dot_4_bytes(uint32_t a, uint32_t b, int sum) {
#ifdef __CUDA_ARCH__
  return __dp4a(static_cast<int>(a), static_cast<int>(b), sum);
#else
  for (int i = 0; i < 4; ++i)
    sum += static_cast<int8_t>(a >> 8 * i & 0xff) * static_cast<int8_t>(b >> 8 * i & 0xff);
  return sum;
#endif
}

// The two rows of a warp: their planes, and the index of each one's first piece. grid: of a dtype with one, see SharedGrid.
struct RowPair {
  Planes planes[2];
  uint32_t first[2];
  const uint32_t* grid = nullptr;
};

// The row pairs of a warp, one after the other: here one, whose sums the caller takes.
struct OneTask {
  RowPair pair;
  TANDEM_HD int count() const { return 1; }
  TANDEM_HD const RowPair& rows(int) const { return pair; }
  TANDEM_HD void done(int, float*) const {}  // takes the sums of a task, and sets them to 0
  template <class Prefetch>
  TANDEM_HD void prefetch(Prefetch&&) const {}  // calls it with those tasks that shall go to the L2 cache
};

// Loads stay on their side of it, in machine code too.
TANDEM_HD inline void keep_order() {
#ifdef __CUDA_ARCH__
  asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
#endif
}

// Calls use(raw, x, piece) for the pieces first, first + step, ... below count of every task, whose `raw` load(raw, piece,
// valid) has requested one turn before, of the task of the last go_to(task); the first before the previous kernel's
// results are waited for. The lanes of a warp take the same turns, in pairs: two buffers, so that nothing moves between
// registers. What a piece is multiplied with, x = fetch(piece), is requested before the next piece is: behind it, it would wait for
// that too, for loads may come back in order.
template <class Raw, class Tasks, class GoTo, class Load, class Fetch, class Use>
TANDEM_HD inline void stream_pieces(const Tasks& tasks, uint32_t first, uint32_t step, uint32_t count,
                                    float* sums, GoTo&& go_to, Load&& load, Fetch&& fetch, Use&& use) {
  const uint32_t n_pairs =
      count > first / 32 * 32 ? (count - first / 32 * 32 + 2 * step - 1) / (2 * step) : 1;
  const int n_tasks = tasks.count();
  Raw a{}, b{};
  go_to(0);
  load(a, first, first < count);
  wait_for_previous();
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
  for (int task = 0; task < n_tasks; ++task) {
    uint32_t piece = first;
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
    for (uint32_t pair = n_pairs; pair > 0; --pair, piece += 2 * step) {
      auto x = fetch(piece, piece < count);
      keep_order();
      load(b, piece + step, piece + step < count);
      if (piece < count) use(a, x, piece);
      uint32_t next = piece + 2 * step;
      bool valid = next < count;
      if (pair == 1) {
        next = first;
        valid = task + 1 < n_tasks && first < count;
        if (task + 1 < n_tasks) go_to(task + 1);
      }
      x = fetch(piece + step, piece + step < count);
      keep_order();
      load(a, next, valid);
      if (piece + step < count) use(b, x, piece + step);
    }
    tasks.done(task, sums);
  }
}

// The lines of bytes [0, n_bytes) that a lane brings to the L2 cache, where lanes first, first + step, ... share them.
TANDEM_HD inline void prefetch_lines(const std::byte* from, int64_t n_bytes, uint32_t first, uint32_t step) {
  for (int64_t at = int64_t{128} * first; at < n_bytes; at += int64_t{128} * step) prefetch_to_l2(from + at);
}

// Returns the contribution of one piece of a quantized row to the sum of one token. codes [4]; x: the bytes
// of the block's halves.
template <DType T>
TANDEM_HD inline float block_product(const CodeWords* codes, const BlockScales& scales,
                                     const uint32_t* x_first, const uint32_t* x_second,
                                     const BlockMeta& meta) {
  using F = Format<T>;
  int first = 0, second = 0;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int w = 0; w < 4; ++w) {
    first = dot_4_bytes(codes[w].first, x_first[w], first);
    second = dot_4_bytes(codes[w].second, x_second[w], second);
  }
  const int sum_first = meta.sums[0], sum_second = meta.sums[1];
  if constexpr (F::kCodeOffset != 0) {
    first -= F::kCodeOffset * sum_first;
    second -= F::kCodeOffset * sum_second;
  }
  float product;
  if constexpr (F::kHalves) {
    product = scales.scale[0] * static_cast<float>(first) + scales.scale[1] * static_cast<float>(second);
    if constexpr (F::kMinimum) {
      product -= scales.minimum[0] * static_cast<float>(sum_first) +
                 scales.minimum[1] * static_cast<float>(sum_second);
    }
  } else {
    product = scales.scale[0] * static_cast<float>(first + second);
    if constexpr (F::kMinimum) product -= scales.minimum[0] * static_cast<float>(sum_first + sum_second);
  }
  return product * meta.scale;
}

// Adds to sums[2][N] what a lane's pieces first, first + step, ... of both rows give with tokens token0 ..
// token0 + n - 1. step is a multiple of 8.
template <DType T, int N, class Tasks>
TANDEM_HD inline void multiply_pieces(const Tasks& tasks, int k, uint32_t first, uint32_t step,
                                      const ProductInput& input, int token0, int n, float* sums) {
  struct Raw {
    RawBlock row[2];
  };
  const auto pieces = static_cast<uint32_t>(k) / kBlockColumns;
  Planes at[2];
  const auto go_to = [&](int task) {
    const RowPair rows = tasks.rows(task);
    for (int r = 0; r < 2; ++r) at[r] = advance<T>(rows.planes[r], rows.first[r]);
  };
  const Activations& x = input.encoded[static_cast<int>(encoding_of(T))];
  const std::byte* x_q = x.q + static_cast<int64_t>(token0) * k;
  const BlockMeta* x_meta = x.meta + static_cast<int64_t>(token0) * pieces;
  const int in_super = static_cast<int>(first % kSuperBlocks);  // of all the lane's pieces
  const SharedGrid grid{tasks.rows(0).grid};
  tasks.prefetch([&](int task) {
    constexpr PieceBytes bytes = piece_bytes(T);
    const RowPair rows = tasks.rows(task);
    for (int r = 0; r < 2; ++r) {
      const Planes row = advance<T>(rows.planes[r], rows.first[r]);
      prefetch_lines(row.low, int64_t{bytes.low} * pieces, first, step);
      prefetch_lines(row.high, int64_t{bytes.high} * pieces, first, step);
      prefetch_lines(row.scale, int64_t{bytes.scale} * pieces, first, step);
      prefetch_lines(row.super, int64_t{bytes.super} * pieces / kSuperBlocks, first, step);
    }
  });

  const auto load = [&](Raw& raw, uint32_t piece, bool valid) {
    for (int r = 0; r < 2; ++r) raw.row[r] = load_block<T>(at[r], piece, valid);
  };
  struct Input {
    uint32_t first[4], second[4];  // the bytes of the block's halves
    BlockMeta meta;
  };
  const auto fetch_of = [&](int t, uint32_t piece, bool valid = true) {
    Input in;
    load_again<4>(x_q + (2 * t * pieces + piece) * 16, in.first, valid);
    load_again<4>(x_q + ((2 * t + 1) * pieces + piece) * 16, in.second, valid);
    uint32_t meta[2];
    load_again<2>(x_meta + (t * pieces + piece), meta, valid);
    in.meta = std::bit_cast<BlockMeta>(static_cast<uint64_t>(meta[1]) << 32 | meta[0]);
    return in;
  };
  const auto use = [&](const Raw& raw, Input in, uint32_t piece) {
    CodeWords codes[2][4];
    BlockScales scales[2];
    for (int r = 0; r < 2; ++r) {
      for (int w = 0; w < 4; ++w) codes[r][w] = unpack_word<T>(raw.row[r], w, grid);
      scales[r] = block_scales<T>(scale_of<T>(raw.row[r]), raw.row[r].super, in_super);
    }
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int t = 0; t < N; ++t) {
      if (N > 1 && t >= n) break;
      if (t > 0) in = fetch_of(t, piece);
      for (int r = 0; r < 2; ++r) {
        sums[r * N + t] += block_product<T>(codes[r], scales[r], in.first, in.second, in.meta);
      }
    }
  };
  stream_pieces<Raw>(tasks, first, step, pieces, sums, go_to, load, [&](uint32_t piece, bool valid) { return fetch_of(0, piece, valid); }, use);
}

template <DType T>
TANDEM_HD inline float float_of(uint32_t bits) {
  if constexpr (T == DType::F32) return std::bit_cast<float>(bits);
  if constexpr (T == DType::F16) return half_to_float(static_cast<fp16_t>(bits));
  return bfloat_to_float(static_cast<bf16_t>(bits));
}

// The same for rows of floats, 16 bytes a piece.
template <DType T, int N, class Tasks>
TANDEM_HD inline void multiply_floats(const Tasks& tasks, int k, uint32_t first, uint32_t step,
                                      const ProductInput& input, int token0, int n, float* sums) {
  struct Raw {
    uint32_t row[2][4];
  };
  constexpr int kValues = kFloatPiece / float_bytes(T), kPerWord = kValues / 4;
  const std::byte* at[2] = {};
  const auto row_at = [](const RowPair& rows, int r) {
    return rows.planes[r].low + static_cast<uint64_t>(rows.first[r]) * kFloatPiece;
  };
  const float* x = input.x + static_cast<int64_t>(token0) * k;
  tasks.prefetch([&](int task) {
    const RowPair rows = tasks.rows(task);
    for (int r = 0; r < 2; ++r) prefetch_lines(row_at(rows, r), int64_t{k} * float_bytes(T), first, step);
  });

  const auto go_to = [&](int task) {
    const RowPair rows = tasks.rows(task);
    for (int r = 0; r < 2; ++r) at[r] = row_at(rows, r);
  };
  const auto load = [&](Raw& raw, uint32_t piece, bool valid) {
    for (int r = 0; r < 2; ++r)
      load_words<4>(at[r] + static_cast<uint64_t>(piece) * kFloatPiece, raw.row[r], valid);
  };
  struct Input {
    uint32_t values[kValues];
  };
  const auto fetch_of = [&](int t, uint32_t piece, bool valid = true) {
    Input in;
    for (int i = 0; i < kValues; i += 4)
      load_again<4>(x + static_cast<uint32_t>(t * k) + piece * kValues + i, in.values + i, valid);
    return in;
  };
  const auto use = [&](const Raw& raw, Input in, uint32_t piece) {
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int t = 0; t < N; ++t) {
      if (N > 1 && t >= n) break;
      if (t > 0) in = fetch_of(t, piece);
      for (int i = 0; i < kValues; ++i) {
        const int word = i / kPerWord, shift = kPerWord == 2 ? i % 2 * 16 : 0;
        for (int r = 0; r < 2; ++r) {
          sums[r * N + t] += float_of<T>(raw.row[r][word] >> shift) * std::bit_cast<float>(in.values[i]);
        }
      }
    }
  };
  stream_pieces<Raw>(tasks, first, step, static_cast<uint32_t>(k) / kValues, sums, go_to, load,
                     [&](uint32_t piece, bool valid) { return fetch_of(0, piece, valid); }, use);
}

// Rows of floats of awkward length, element by element; rare, and small when it happens.
template <int N>
TANDEM_HD inline void add_elements(DType dtype, const RowPair& rows, int k, uint32_t first, uint32_t step,
                                   const ProductInput& input, int token0, int n, float* sums) {
  for (uint32_t column = first; column < static_cast<uint32_t>(k); column += step) {
    for (int r = 0; r < 2; ++r) {
      const int64_t at = static_cast<int64_t>(rows.first[r]) + column;
      const std::byte* row = rows.planes[r].low;
      const auto half = [&] { return reinterpret_cast<const uint16_t*>(row)[at]; };
      const float w = dtype == DType::F32   ? reinterpret_cast<const float*>(row)[at]
                      : dtype == DType::F16 ? half_to_float(half())
                                            : bfloat_to_float(half());
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
      for (int t = 0; t < N; ++t) {
        if (t < n) sums[r * N + t] += w * input.x[static_cast<int64_t>(token0 + t) * k + column];
      }
    }
  }
}

template <int N, class Tasks>
TANDEM_HD inline void multiply_elements(DType dtype, const Tasks& tasks, int k, uint32_t first, uint32_t step,
                                        const ProductInput& input, int token0, int n, float* sums) {
  wait_for_previous();
  for (int task = 0; task < tasks.count(); ++task) {
    add_elements<N>(dtype, tasks.rows(task), k, first, step, input, token0, n, sums);
    tasks.done(task, sums);
  }
}

// The same for rows of any block format, as in the file: dequantizes a piece of 32 columns and multiplies it
// with the input's. Cost: a few operations per element, so it reaches a fraction of the memory bandwidth.
template <class Block, int N>
TANDEM_HD inline void add_blocks(const RowPair& rows, int k, uint32_t first, uint32_t step,
                                 const ProductInput& input, int token0, int n, float* sums) {
  constexpr uint32_t kPieces = Block::kElements / kBlockColumns;
  for (uint32_t piece = first; piece < static_cast<uint32_t>(k) / kBlockColumns; piece += step) {
    for (int r = 0; r < 2; ++r) {
      const uint64_t at = static_cast<uint64_t>(rows.first[r]) + piece;
      const Block& block = reinterpret_cast<const Block*>(rows.planes[r].low)[at / kPieces];
      float w[kBlockColumns];
      dequantize_32(block, static_cast<int>(at % kPieces), w);
      for (int t = 0; t < N && t < n; ++t) {
        const float* x = input.x + static_cast<int64_t>(token0 + t) * k + piece * kBlockColumns;
        for (int i = 0; i < kBlockColumns; ++i) sums[r * N + t] += w[i] * x[i];
      }
    }
  }
}

template <class Block, int N, class Tasks>
TANDEM_HD inline void multiply_blocks(const Tasks& tasks, int k, uint32_t first, uint32_t step,
                                      const ProductInput& input, int token0, int n, float* sums) {
  wait_for_previous();
  for (int task = 0; task < tasks.count(); ++task) {
    add_blocks<Block, N>(tasks.rows(task), k, first, step, input, token0, n, sums);
    tasks.done(task, sums);
  }
}

// Targets with tasks of their own.
TANDEM_HD inline int n_task_targets(const MatvecArgs& args) {
  return args.mode == MatvecMode::linear ? args.n_targets : 1;
}

// The tasks of a target that a block of the grid takes: number `first` of them, and every n_grid-th after it.
struct TaskShare {
  int first, count;
};
TANDEM_HD inline TaskShare tasks_of_block(const MatvecArgs& args, int target, int block, int n_grid) {
  const bool is_last = target + 1 == n_task_targets(args);
  const int begin = args.targets[target].first_block;
  const int end = is_last ? args.n_blocks : args.targets[target + 1].first_block;
  const int first = block >= begin ? block : block + (begin - block + n_grid - 1) / n_grid * n_grid;
  return {first - begin, first < end ? (end - first + n_grid - 1) / n_grid : 0};
}

// Fills in first_block of the targets and n_blocks, for the slice_bits.
inline void number_tasks(MatvecArgs& args) {
  args.n_blocks = 0;
  for (int t = 0; t < n_task_targets(args); ++t) {
    const int per_block = pairs_per_block(args.slice_bits);
    args.targets[t].first_block = args.n_blocks;
    args.n_blocks += (n_pairs(args.mode, args.targets[t].w.m) + per_block - 1) / per_block;
  }
}

// The rows of a pair of a target, with a paired mode of it and the one behind it; `expert` 0 where there are none.
TANDEM_HD inline RowPair row_pair(const MatvecTarget* target, MatvecMode mode, int pair, int expert = 0,
                                  const uint32_t* grid = nullptr) {
  RowPair rows;
  rows.grid = grid;
  for (int r = 0; r < 2; ++r) {
    const DeviceWeight& w = target[is_paired(mode) ? r : 0].w;
    rows.planes[r] = expert_planes(w, expert);
    rows.first[r] = static_cast<uint32_t>(row_of_pair(mode, pair, r, w.m)) * static_cast<uint32_t>(w.n_pieces);
  }
  return rows;
}
TANDEM_HD inline RowPair row_pair(const MatvecArgs& args, int target, int pair, int expert,
                                  const uint32_t* grid) {
  return row_pair(args.targets + target, args.mode, pair, expert, grid);
}

// The index and the weight of the expert of pair (token, chosen); a negative index leaves the pair out.
TANDEM_HD inline int route_expert(const MatvecArgs& args, int token, int chosen) {
  return std::bit_cast<int>(args.route[static_cast<int64_t>(token) * 2 * args.n_used + chosen]);
}
TANDEM_HD inline float route_weight(const MatvecArgs& args, int token, int chosen) {
  return args.route[static_cast<int64_t>(token) * 2 * args.n_used + args.n_used + chosen];
}

// The biases of a pair's rows with an expert, to one lane's sums[2].
TANDEM_HD inline void add_expert_bias(const MatvecArgs& args, int pair, int expert, float* sums) {
  for (int r = 0; r < 2; ++r) {
    const MatvecTarget& t = args.targets[is_paired(args.mode) ? r : 0];
    if (!t.expert_bias) continue;
    sums[r] += t.expert_bias[static_cast<int64_t>(expert) * t.w.m + row_of_pair(args.mode, pair, r, t.w.m)];
  }
}

// Multiplies the sums[2] of a pair's rows with an expert.
TANDEM_HD inline void scale_by_expert(const MatvecArgs& args, int expert, float* sums) {
  for (int r = 0; r < 2; ++r) {
    const float* factors = args.targets[is_paired(args.mode) ? r : 0].expert_factors;
    if (factors) sums[r] *= factors[expert];
  }
}

// A lane's share of the sums[2][N] of its warp's pair: of tokens 0 .. args.n - 1. grid: the block's, as RowPair's.
template <int N, class Kernels>
TANDEM_HD inline void lane_sums(const MatvecArgs& args, int target, WarpShare share, int lane, float* sums,
                                const uint32_t* grid = nullptr) {
  const DeviceWeight& w = args.targets[target].w;
  const RowPair rows = row_pair(args, target, share.pair, 0, grid);
  Kernels::template with_multiply<N>(w, [&](auto multiply) {
    multiply(OneTask{rows}, w.k, first_piece(share, lane), 32u << args.slice_bits, args.input, 0, args.n,
             sums);
  });
}

// The same for experts. Of one, number `chosen` of token `token`, warps share the columns; of the weighted
// sum over all of them, warps share the experts, for an expert's rows are short.
template <class Kernels>
TANDEM_HD inline void expert_lane_sums(const MatvecArgs& args, int token, int chosen, WarpShare share,
                                       int lane, float* sums, const uint32_t* grid = nullptr) {
  const DeviceWeight& w = args.targets[0].w;
  const int n_slices = 1 << args.slice_bits;
  const auto first = static_cast<uint32_t>(lane);
  wait_for_previous();  // which experts is known only now
  Kernels::template with_multiply<1>(w, [&](auto multiply) {
    if (args.mode != MatvecMode::experts_down) {
      const int expert = route_expert(args, token, chosen);
      if (expert < 0) return;
      const RowPair rows = row_pair(args, 0, share.pair, expert, grid);
      multiply(OneTask{rows}, w.k, first_piece(share, lane), 32u * n_slices, args.input, token, 1, sums);
      scale_by_expert(args, expert, sums);
      if (lane == 0 && share.slice == 0) add_expert_bias(args, share.pair, expert, sums);
      return;
    }
    for (int i = share.slice; i < args.n_used; i += n_slices) {
      float part[2] = {};
      const int expert = route_expert(args, token, i);
      if (expert < 0) continue;
      const RowPair rows = row_pair(args, 0, share.pair, expert, grid);
      if (lane == 0) add_expert_bias(args, share.pair, expert, part);
      multiply(OneTask{rows}, w.k, first, 32u, args.input, token * args.n_used + i, 1, part);
      const float weight = route_weight(args, token, i);
      sums[0] += weight * part[0];
      sums[1] += weight * part[1];
    }
  });
}

// Stores the sums of both rows of a pair for row `at` of the output (a token, or a slot); the target as of row_pair.
TANDEM_HD inline void store_pair(const MatvecTarget* target, MatvecMode mode, Activation activation, int pair, int at,
                                 float first, float second) {
  const MatvecTarget& to = target[0];
  const int64_t base = static_cast<int64_t>(at) * to.w.m;
  if (is_paired(mode)) {
    if (pair >= to.w.m) return;
    const MatvecTarget& up = target[1];
    to.y[base + pair] = gated(activation, first + (to.bias ? to.bias[pair] : 0.0f),
                              second + (up.bias ? up.bias[pair] : 0.0f));
    return;
  }
  for (int r = 0; r < 2; ++r) {
    const int row = 2 * pair + r;
    if (row >= to.w.m) return;
    float y = r == 0 ? first : second;
    if (to.bias) y += to.bias[row];
    if (to.residual) y += to.residual[base + row];
    to.y[base + row] = y;
  }
}

TANDEM_HD inline void store_pair(const MatvecArgs& args, int target, int pair, int at, float first, float second) {
  store_pair(args.targets + target, args.mode, args.activation, pair, at, first, second);
}

}  // namespace tandem::cuda
