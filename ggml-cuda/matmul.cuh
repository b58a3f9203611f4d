// The kernel of matmul.h.
#pragma once

#include "ggml-cuda/matmul.h"

namespace tandem::cuda {

// Floats from a token's sums to the next's in shared memory: lanes of a fragment write to different banks.
inline constexpr int kOutputRow = kTileRows + 4;

// Copies bytes to shared memory asynchronously; zeros where not valid.
template <int kBytes>
__device__ inline void copy_async(uint32_t to, const std::byte* from, bool valid) {
  const int n_bytes = valid ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n_bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes),
                 "r"(n_bytes)
                 : "memory");
  }
}
__device__ inline void end_copy_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ inline void wait_copy_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ inline void load_matrices(uint32_t at, uint32_t (&b)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(at)
               : "memory");
}

// c [16, 8] = a [16, 32] b [32, 8] of signed bytes.
__device__ inline void multiply_32(const uint32_t* a, uint32_t b0, uint32_t b1, int* c) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, "
      "%10, %10, %10};"
      : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}

// The same for 16 columns.
__device__ inline void multiply_16(uint32_t a0, uint32_t a1, uint32_t b, int* c) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
      : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(0));
}

// A stage's products into a warp's accumulators [2][2 kPairs][4]: fragments of rows, of tokens.
template <DType T, int kPairs>
__device__ inline void multiply_stage(const std::byte* stage, uint32_t stage_at, const float* floats, int row,
                                      int token, int lane, const uint32_t* grid,
                                      float (&sums)[2][2 * kPairs][4]) {
  using M = Matmul<T, kPairs>;
  const int g = lane / 4, w = lane % 4;
#pragma unroll
  for (int b = 0; b < kStageBlocks; ++b) {
    uint32_t a[2][4];
    float row_scales[2][2][M::kRowFloats];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      M::fragment_a(stage, floats, row + 16 * i, b, lane, a[i], grid);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int f = 0; f < M::kRowFloats; ++f)
          row_scales[i][r][f] = M::row_floats(floats, row + 16 * i + g + 8 * r, b)[f];
      }
    }
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      uint32_t fragments[4];
      load_matrices(stage_at + M::fragment_b_at(token + 16 * pair, b, lane), fragments);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float token_scales[2][M::kTokenFloats];
#pragma unroll
        for (int t = 0; t < 2; ++t) {
#pragma unroll
          for (int f = 0; f < M::kTokenFloats; ++f) {
            token_scales[t][f] = M::token_floats(floats, token + 16 * pair + 8 * j + 2 * w + t, b)[f];
          }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          int c[2][4];
          if constexpr (M::F::kHalves) {
            multiply_16(a[i][0], a[i][1], fragments[2 * j], c[0]);
            multiply_16(a[i][2], a[i][3], fragments[2 * j + 1], c[1]);
          } else {
            multiply_32(a[i], fragments[2 * j], fragments[2 * j + 1], c[0]);
          }
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int halves[2] = {c[0][e], M::F::kHalves ? c[1][e] : 0};
            float& sum = sums[i][2 * pair + j][e];
            sum = M::scaled(sum, halves, row_scales[i][e / 2], token_scales[e % 2]);
          }
        }
      }
    }
  }
}

// Grid: tiles of rows, tiles of tokens, slices of columns. Shared memory: the stages, the floats of two
// stages, the rows of x of the tile's tokens, the grid.
template <DType T, int kPairs>
__global__ void __launch_bounds__(kMatmulThreads, Matmul<T, kPairs>::kTokenFloats == 4 ? 2 : 3)
    matmul_kernel(const __grid_constant__ MatmulArgs args) {
  using M = Matmul<T, kPairs>;
  static_assert(M::kTokens * kOutputRow * 4 <= 2 * M::kStageBytes);
  extern __shared__ __align__(16) std::byte shared[];
  float* floats = reinterpret_cast<float*>(shared + args.n_stages * M::kStageBytes);
  int* x_rows = reinterpret_cast<int*>(floats + 2 * M::kScaleFloats);
  uint32_t* grid = reinterpret_cast<uint32_t*>(x_rows + M::kTokens);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;

  TokenTile tokens{0, static_cast<int>(blockIdx.y) * M::kTokens, 0};
  tokens.count = min(M::kTokens, args.n - tokens.first);
  if (args.tiles) {
    if (static_cast<int>(blockIdx.y) >= *args.n_tiles) return;
    tokens = args.tiles[blockIdx.y];
  }
  const typename M::Tile tile{expert_planes(args.w, tokens.expert),
                              args.w.k / kBlockColumns,
                              args.w.m,
                              static_cast<int>(blockIdx.x) * kTileRows,
                              tokens.first,
                              tokens.count};
  for (int i = thread; i < tokens.count; i += kMatmulThreads) {
    x_rows[i] = args.row_of ? args.row_of[tokens.first + i] : tokens.first + i;
  }
  make_grid<T>(grid, thread, kMatmulThreads);
  __syncthreads();

  const typename M::Cursor cursor = M::cursor_of(tile, x_rows, thread);
  const StageRange stages = stages_of_slice(args.w.k, static_cast<int>(blockIdx.z), args.n_slices);
  const auto shared_at = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const auto request = [&](int i) {  // stage i of this slice; an empty group past the last keeps the count
    if (i < stages.count) {
      const uint32_t to = shared_at + static_cast<uint32_t>(i % args.n_stages * M::kStageBytes);
      M::copy_stage(tile, args.x, cursor, stages.first + i, thread,
                    [&]<int kBytes>(int at, const std::byte* from, bool valid) {
                      copy_async<kBytes>(to + static_cast<uint32_t>(at), from, valid);
                    });
    }
    end_copy_group();
  };
  for (int i = 0; i < args.n_stages - 1; ++i) request(i);
  typename M::RawScales raw = M::load_scales(tile, args.x, cursor, stages.first, thread);
  M::store_scales(raw, stages.first, thread, floats);
  if (stages.count > 1) raw = M::load_scales(tile, args.x, cursor, stages.first + 1, thread);

  float sums[2][2 * kPairs][4] = {};
  const int row = warp / 2 * 32, token = warp % 2 * (M::kTokens / 2);
  for (int i = 0; i < stages.count; ++i) {
    if (args.n_stages == 2) wait_copy_groups<0>();
    if (args.n_stages == 3) wait_copy_groups<1>();
    if (args.n_stages == 4) wait_copy_groups<2>();
    __syncthreads();  // stage i and its floats are there; nobody reads stage i - 1 any more
    request(i + args.n_stages - 1);
    if (i + 1 < stages.count) {
      M::store_scales(raw, stages.first + i + 1, thread, floats + (i + 1) % 2 * M::kScaleFloats);
      if (i + 2 < stages.count) raw = M::load_scales(tile, args.x, cursor, stages.first + i + 2, thread);
    }
    const int at = i % args.n_stages * M::kStageBytes;
    multiply_stage<T, kPairs>(shared + at, shared_at + static_cast<uint32_t>(at),
                              floats + i % 2 * M::kScaleFloats, row, token, lane, grid, sums);
  }

  // Through shared memory, where the stages were, so that neighbouring threads store neighbouring rows.
  wait_copy_groups<0>();
  __syncthreads();
  float* out = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 2 * kPairs; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        out[(token + 8 * j + accumulator_token(lane, e)) * kOutputRow + row + 16 * i +
            accumulator_row(lane, e)] = sums[i][j][e];
      }
    }
  }
  __syncthreads();
  const int r = thread % kTileRows;
  if (tile.row0 + r >= tile.m) return;
#pragma unroll 1
  for (int t = thread / kTileRows; t < tile.n_tokens; t += kMatmulThreads / kTileRows) {
    store_sum(args, static_cast<int>(blockIdx.z), tokens.expert, tile.token0 + t, tile.row0 + r,
              out[t * kOutputRow + r]);
  }
}

}  // namespace tandem::cuda
