// The 16 query rows of a warp and the running sums of flash attention (arXiv:2205.14135) as operands and results of
// mma.m16n8k16, for the kernels that bring tiles of keys and values to shared memory as 16-bit floats. A lane has parts of rows
// lane / 4 and lane / 4 + 8.
#pragma once

#include "ggml-cuda/attention_fragments.h"
#include "ggml-cuda/attention_mma.cuh"

namespace tandem::cuda {

// Heads of up to kDim columns, tiles of kTile positions.
template <class Operands, int kDim, int kTile>
struct QueryWarp {
  static constexpr int kScoreTiles = kTile / 8;
  static constexpr int kStride = kDim + 8;  // elements: 16 bytes more than a row, so that ldmatrix reads without bank conflicts
  using Row = uint16_t[kStride];            // of a tile; columns up to the next 16 are finite
  using Scores = float[kScoreTiles][4];

  int lane;
  PositionRange seen[2];     // by the lane's rows, of the current sequence
  uint32_t q[kDim / 16][4];  // times scale
  float o[kDim / 8][4];      // sum of weight * v, as C tiles
  float max[2], sum[2];      // sum: over the columns that this lane has

  // The row of the tile that the lane's part r is of.
  __device__ int row(int r) const { return place_in_c(lane, 2 * r).row; }

  // rows: this lane's [head_dim]; of zeros where there is none.
  __device__ void start(const float* const (&rows)[2], const bool (&exist)[2], int head_dim, float scale) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      max[r] = -INFINITY;
      sum[r] = 0.0f;
    }
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int col = 16 * step + place_in_a(lane, i, 0).col;
        float2 x{};
        if (col < head_dim && exist[i & 1]) x = *reinterpret_cast<const float2*>(rows[i & 1] + col);
        q[step][i] = Operands::pack(x.x * scale, x.y * scale);
      }
    }
#pragma unroll
    for (int tile = 0; tile < kDim / 8; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o[tile][i] = 0.0f;
    }
  }

  __device__ void scores(const Row* k, int head_dim, Scores& s) const {
    const Place at = key_row_of(lane);
#pragma unroll
    for (int tile = 0; tile < kScoreTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[tile][i] = 0.0f;
    }
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      if (16 * step >= head_dim) break;
#pragma unroll
      for (int tile = 0; tile < kScoreTiles; tile += 2) {
        uint32_t b[4];
        load_matrices(b, &k[8 * tile + at.row][16 * step + at.col]);
        Operands::multiply(s[tile], q[step], b[0], b[1]);
        Operands::multiply(s[tile + 1], q[step], b[2], b[3]);
      }
    }
  }

  // first: the tile's first position.
  __device__ void cap_and_mask(float softcap, int first, Scores& s) const {
    if (softcap > 0.0f) {
#pragma unroll
      for (int tile = 0; tile < kScoreTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[tile][i] = capped(s[tile][i], softcap);
      }
    }
    const int from = int_max(seen[0].begin, seen[1].begin), to = int_min(seen[0].end, seen[1].end);
    if (first >= from && first + kTile <= to) return;
#pragma unroll
    for (int tile = 0; tile < kScoreTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int position = first + 8 * tile + place_in_c(lane, i).col;
        if (position < seen[i >> 1].begin || position >= seen[i >> 1].end) s[tile][i] = -INFINITY;
      }
    }
  }

  // Turns scores into weights and scales older sums to the new maxima.
  __device__ void soften(Scores& s) {
    float factor[2], base[2];
    bool has_grown = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = max[r];
#pragma unroll
      for (int tile = 0; tile < kScoreTiles; ++tile)
        most = fmaxf(most, fmaxf(s[tile][2 * r], s[tile][2 * r + 1]));
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
      base[r] = finite_max(most);
      factor[r] = exp_of(max[r] - base[r]);
      has_grown |= most != max[r];
      max[r] = most;
      sum[r] *= factor[r];
    }
#pragma unroll
    for (int tile = 0; tile < kScoreTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[tile][i] = exp_of_difference(s[tile][i], base[i >> 1]);
        sum[i >> 1] += s[tile][i];
      }
    }
    // Few short tiles have a new maximum.
    if (kTile <= 16 && !__any_sync(kAllLanes, has_grown)) return;
#pragma unroll
    for (int tile = 0; tile < kDim / 8; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o[tile][i] *= factor[i >> 1];
    }
  }

  // Rows of weight 0 are finite too.
  __device__ void add_values(const Row* v, int head_dim, const Scores& s) {
    constexpr int kSteps = kScoreTiles / 2;
    const Place at = value_row_of(lane);
    uint32_t weights[kSteps][4];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float* c = s[2 * step + weight_tile(r)] + weight_register(r);
        weights[step][r] = Operands::pack(c[0], c[1]);
      }
    }
#pragma unroll
    for (int tile = 0; tile < kDim / 8; tile += 2) {
      if (8 * tile >= head_dim) break;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t b[4];
        load_matrices_trans(b, &v[16 * step + at.row][8 * tile + at.col]);
        Operands::multiply(o[tile], weights[step], b[0], b[1]);
        Operands::multiply(o[tile + 1], weights[step], b[2], b[3]);
      }
    }
  }

  // Gives the lanes of a row its sum.
  __device__ void add_up() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(kAllLanes, sum[r], 1);
      sum[r] += __shfl_xor_sync(kAllLanes, sum[r], 2);
    }
  }
};

}  // namespace tandem::cuda
