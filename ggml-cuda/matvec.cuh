// The kernels of matvec.h.
#pragma once

#include "ggml-cuda/matvec_kernels.h"
#include "ggml-cuda/ordering.cuh"
#include "ggml-cuda/quantize.cuh"

namespace tandem::cuda {

// Sums over the lanes of a warp of every value; lane 0 has them.
template <int kCount>
__device__ inline void sum_over_lanes(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) values[i] += __shfl_xor_sync(0xffffffffu, values[i], mask);
  }
}

// The sums of the block's pairs, from those of its warps. partial [kMatvecWarps][2 N].
template <int N>
__device__ inline float sum_of_slices(const float* partial, int pair, int slice_bits, int index) {
  float sum = 0.0f;
#pragma unroll
  for (int s = 0; s < kMatvecWarps; ++s) {
    if (s < 1 << slice_bits) sum += partial[((pair << slice_bits) + s) * 2 * N + index];
  }
  return sum;
}

// Makes the block's table of a grid, where its dtype has one.
template <class Kernels>
__device__ inline void prepare_grid(DType dtype, uint32_t* grid) {
  if constexpr (Kernels::kGridWords > 1) {
    Kernels::make(dtype, grid, static_cast<int>(threadIdx.x), 32 * kMatvecWarps);
    __syncthreads();
  }
}

// Makes the bytes of a run of kMadeRows rows of the results, which are complete.
__device__ inline void make_run(const MatvecArgs& args, int run, int lane) {
  const int m = args.targets[0].w.m, column = run * kMadeRows + kLaneColumns * lane;
  for (int token = 0; token < args.n; ++token) {
    float values[kLaneColumns];
    load_columns(args.targets[0].y + static_cast<int64_t>(token) * m + column, values);
    encode_columns(values, true, token, column, m, args.made);
  }
}

// After the warp has stored n rows from row first_of(task) on of each of its tasks: makes the bytes of those runs that they
// complete. A lane counts for a task, so that the warp waits once for all that is under way.
template <class FirstOf>
__device__ inline void make_bytes(const MatvecArgs& args, int n_tasks, int n, int lane, FirstOf&& first_of) {
  __syncwarp();
  for (int base = 0; base < n_tasks; base += 32) {
    const int task = base + lane;
    const int run = task < n_tasks ? first_of(task) / kMadeRows : 0;
    const bool is_last = task < n_tasks && count(&args.made.counters[run], n) + n == kMadeRows;
    if (is_last) args.made.counters[run] = 0;
    unsigned complete = __ballot_sync(0xffffffffu, is_last);
    __syncwarp();  // orders the loads below behind the count, which a ballot does not
    for (; complete != 0; complete &= complete - 1) make_run(args, __shfl_sync(0xffffffffu, run, __ffs(complete) - 1), lane);
  }
}

// The tasks of a block that are of one target: first, first + step, ...
template <int N>
struct BlockTasks {
  const MatvecArgs& args;
  int target;
  TaskShare share;
  int step;
  const uint32_t* grid;
  float* partial;  // [2][kMatvecWarps][2 N], of even and odd tasks

  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }

  __device__ int count() const { return share.count; }
  __device__ int block_of(int task) const { return share.first + task * step; }
  __device__ RowPair rows(int task) const {
    return row_pair(args, target, warp_share(block_of(task), warp(), args.slice_bits).pair, 0, grid);
  }
  template <class Prefetch>
  __device__ void prefetch(Prefetch&& fn) const {
    for (int task = 1; task < share.count && task <= args.n_prefetched; ++task) fn(task);
  }
  __device__ void done(int task, float* all) const {
    float(&sums)[2 * N] = *reinterpret_cast<float(*)[2 * N]>(all);
    sum_over_lanes(sums);
    float* to = partial + task % 2 * kMatvecWarps * 2 * N;
    if (lane() == 0) {
#pragma unroll
      for (int i = 0; i < 2 * N; ++i) to[warp() * 2 * N + i] = sums[i];
    }
    // With a pair of its own, a warp need not wait for the others.
    const bool alone = args.slice_bits == 0;
    alone ? __syncwarp() : __syncthreads();
    const int at = alone ? lane() : static_cast<int>(threadIdx.x);
    const int pair = alone ? warp() : at / N, token = alone ? at : at % N;
    if (pair < pairs_per_block(args.slice_bits) && token < args.n) {
      store_pair(args, target, block_of(task) * pairs_per_block(args.slice_bits) + pair, token,
                 sum_of_slices<N>(to, pair, args.slice_bits, token),
                 sum_of_slices<N>(to, pair, args.slice_bits, N + token));
    }
#pragma unroll
    for (int i = 0; i < 2 * N; ++i) sums[i] = 0.0f;
  }
  // After all tasks.
  __device__ void finish() const {
    if (!args.made.counters) return;
    const int n_pairs = pairs_per_block(args.slice_bits);
    const bool alone = args.slice_bits == 0;
    if (!alone && warp() != 0) return;  // the first warp has stored what the block has added up
    make_bytes(args, share.count, alone ? 1 : n_pairs, lane(),
               [&](int task) { return block_of(task) * n_pairs + (alone ? warp() : 0); });
  }
};

template <int N, class Kernels>
__global__ void __launch_bounds__(32 * kMatvecWarps, N == 1 ? 6 : 4)
    matvec_kernel(const __grid_constant__ MatvecArgs args) {
  __shared__ float partial[2 * kMatvecWarps * 2 * N];
  __shared__ uint32_t grid[Kernels::kGridWords];
  let_next_begin();
  const int step = static_cast<int>(gridDim.x);
  for (int t = 0; t < n_task_targets(args); ++t) {
    const BlockTasks<N> tasks{args, t,    tasks_of_block(args, t, static_cast<int>(blockIdx.x), step),
                              step, grid, partial};
    if (tasks.count() == 0) continue;
    prepare_grid<Kernels>(args.targets[t].w.dtype, grid);
    float sums[2 * N] = {};
    const DeviceWeight& w = args.targets[t].w;
    const WarpShare share = warp_share(0, BlockTasks<N>::warp(), args.slice_bits);
    Kernels::template with_multiply<N>(w, [&](auto multiply) {
      multiply(tasks, w.k, first_piece(share, BlockTasks<N>::lane()), 32u << args.slice_bits, args.input, 0,
               args.n, sums);
    });
    tasks.finish();
    __syncthreads();  // all have read the sums and the grid
  }
}

// A block of the grid's x is rows, of its y a slot: a token, or one of a token's chosen experts, from token0
// on.
template <class Kernels>
__global__ void __launch_bounds__(32 * kMatvecWarps, 5)
    expert_matvec_kernel(const __grid_constant__ MatvecArgs args) {
  __shared__ float partial[kMatvecWarps * 2];
  __shared__ uint32_t grid[Kernels::kGridWords];
  let_next_begin();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const bool one_expert = args.mode != MatvecMode::experts_down;
  const int block = static_cast<int>(blockIdx.x);
  const int slot = static_cast<int>(blockIdx.y) + args.token0 * (one_expert ? args.n_used : 1);
  prepare_grid<Kernels>(args.targets[0].w.dtype, grid);
  float sums[2] = {};
  expert_lane_sums<Kernels>(args, one_expert ? slot / args.n_used : slot, one_expert ? slot % args.n_used : 0,
                            warp_share(block, warp, args.slice_bits), lane, sums, grid);
  sum_over_lanes(sums);
  if (lane == 0) {
    partial[2 * warp] = sums[0];
    partial[2 * warp + 1] = sums[1];
  }
  __syncthreads();
  const int pair = static_cast<int>(threadIdx.x);
  if (pair < pairs_per_block(args.slice_bits)) {
    store_pair(args, 0, block * pairs_per_block(args.slice_bits) + pair, slot,
               sum_of_slices<1>(partial, pair, args.slice_bits, 0),
               sum_of_slices<1>(partial, pair, args.slice_bits, 1));
  }
}

}  // namespace tandem::cuda
