// The kernels of matvec.h.
#pragma once

#include "ggml-cuda/matvec.h"

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
  for (int s = 0; s < 1 << slice_bits; ++s) sum += partial[((pair << slice_bits) + s) * 2 * N + index];
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

template <int N, class Kernels>
__global__ void __launch_bounds__(32 * kMatvecWarps, N == 1 ? 6 : 4)
    matvec_kernel(const __grid_constant__ MatvecArgs args) {
  __shared__ float partial[kMatvecWarps * 2 * N];
  __shared__ uint32_t grid[Kernels::kGridWords];
  let_next_begin();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int target = target_of_block(args, static_cast<int>(blockIdx.x));
  const int block = static_cast<int>(blockIdx.x) - args.targets[target].first_block;
  prepare_grid<Kernels>(args.targets[target].w.dtype, grid);
  float sums[2 * N] = {};
  lane_sums<N, Kernels>(args, target, warp_share(block, warp, args.slice_bits), lane, sums, grid);
  sum_over_lanes(sums);
  if (lane == 0) {
#pragma unroll
    for (int i = 0; i < 2 * N; ++i) partial[warp * 2 * N + i] = sums[i];
  }
  __syncthreads();
  const int pair = static_cast<int>(threadIdx.x) / N, token = static_cast<int>(threadIdx.x) % N;
  if (pair < pairs_per_block(args.slice_bits) && token < args.n) {
    store_pair(args, target, block * pairs_per_block(args.slice_bits) + pair, token,
               sum_of_slices<N>(partial, pair, args.slice_bits, token),
               sum_of_slices<N>(partial, pair, args.slice_bits, N + token));
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
