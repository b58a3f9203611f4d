// The query rows of a warp and the running sums of flash attention (arXiv:2205.14135) as operands and results of
// mma.m16n8k16, for the kernels that bring tiles of keys and values to shared memory as 16-bit floats: 16 rows, or several
// such parts, which share what is read of a tile. A lane has parts of rows lane / 4 and lane / 4 + 8 of each.
#pragma once

#include "ggml-cuda/attention_fragments.h"
#include "ggml-cuda/attention_mma.cuh"

namespace tandem::cuda {

// Heads of up to kDim columns, tiles of kTile positions. Of several parts the queries do not fit into registers.
template <class Operands, int kDim, int kTile, int kParts = 1>
struct QueryWarp {
  static constexpr int kRows = 16 * kParts, kLaneRows = 2 * kParts;
  static constexpr int kScoreTiles = kTile / 8, kSteps = kDim / 16;
  static constexpr int kStride = kDim + 8;  // elements: 16 bytes more than a row, so that ldmatrix reads without bank conflicts
  static constexpr bool kStored = kParts > 1;
  static constexpr int kStoredBytes = kStored ? kParts * kSteps * kWarp * 16 : 0;  // of shared memory
  using Row = uint16_t[kStride];  // of a tile; columns up to the next 16 are finite
  using Scores = float[kParts][kScoreTiles][4];

  int lane;
  uint4* stored = nullptr;                            // the queries in shared memory [kParts, kSteps, kWarp]
  uint32_t q[kStored ? 1 : kParts][kStored ? 1 : kSteps][4];  // or in registers; times scale
  PositionRange seen[kLaneRows];                      // by the lane's rows, of the current sequence
  float o[kParts][kDim / 8][4];                       // sum of weight * v, as C tiles
  float max[kLaneRows], sum[kLaneRows];               // sum: over the columns that this lane has

  // The row of the warp that the lane's r-th is.
  __device__ int row(int r) const { return 16 * (r / 2) + place_in_c(lane, 2 * (r % 2)).row; }

  // rows: this lane's [head_dim]; of zeros where there is none.
  __device__ void start(const float* const (&rows)[kLaneRows], const bool (&exist)[kLaneRows], int head_dim, float scale) {
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
      max[r] = -INFINITY;
      sum[r] = 0.0f;
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t a[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int col = 16 * step + place_in_a(lane, i, 0).col, r = 2 * part + (i & 1);
          float2 x{};
          if (col < head_dim && exist[r]) x = *reinterpret_cast<const float2*>(rows[r] + col);
          a[i] = Operands::pack(x.x * scale, x.y * scale);
          if constexpr (!kStored) q[part][step][i] = a[i];
        }
        if constexpr (kStored) stored[(part * kSteps + step) * kWarp + lane] = {a[0], a[1], a[2], a[3]};
      }
#pragma unroll
      for (int tile = 0; tile < kDim / 8; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[part][tile][i] = 0.0f;
      }
    }
  }
  __device__ void load_q(int part, int step, uint32_t (&a)[4]) const {
    if constexpr (kStored) {
      const uint4 all = stored[(part * kSteps + step) * kWarp + lane];
      a[0] = all.x, a[1] = all.y, a[2] = all.z, a[3] = all.w;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = q[part][step][i];
    }
  }

  __device__ void scores(const Row* k, int head_dim, Scores& s) const {
    const Place at = key_row_of(lane);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int tile = 0; tile < kScoreTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[part][tile][i] = 0.0f;
      }
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (16 * step >= head_dim) break;
      uint32_t a[kParts][4];
#pragma unroll
      for (int part = 0; part < kParts; ++part) load_q(part, step, a[part]);
#pragma unroll
      for (int tile = 0; tile < kScoreTiles; tile += 2) {
        uint32_t b[4];
        load_matrices(b, &k[8 * tile + at.row][16 * step + at.col]);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          Operands::multiply(s[part][tile], a[part], b[0], b[1]);
          Operands::multiply(s[part][tile + 1], a[part], b[2], b[3]);
        }
      }
    }
  }

  // first: the tile's first position.
  __device__ void cap_and_mask(float softcap, int first, Scores& s) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (softcap > 0.0f) {
#pragma unroll
        for (int tile = 0; tile < kScoreTiles; ++tile) {
#pragma unroll
          for (int i = 0; i < 4; ++i) s[part][tile][i] = capped(s[part][tile][i], softcap);
        }
      }
      const PositionRange low = seen[2 * part], high = seen[2 * part + 1];
      const int from = int_max(low.begin, high.begin), to = int_min(low.end, high.end);
      if (first >= from && first + kTile <= to) continue;
#pragma unroll
      for (int tile = 0; tile < kScoreTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int position = first + 8 * tile + place_in_c(lane, i).col;
          const PositionRange range = i < 2 ? low : high;
          if (position < range.begin || position >= range.end) s[part][tile][i] = -INFINITY;
        }
      }
    }
  }

  // Turns scores into weights and scales older sums to the new maxima.
  __device__ void soften(Scores& s) {
    float factor[kLaneRows], base[kLaneRows];
    bool has_grown = false;
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
      float most = max[r];
#pragma unroll
      for (int tile = 0; tile < kScoreTiles; ++tile) {
        const float(&c)[4] = s[r / 2][tile];
        most = fmaxf(most, fmaxf(c[2 * (r % 2)], c[2 * (r % 2) + 1]));
      }
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
      base[r] = finite_max(most);
      factor[r] = exp_of(max[r] - base[r]);
      has_grown |= most != max[r];
      max[r] = most;
      sum[r] *= factor[r];
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int tile = 0; tile < kScoreTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& x = s[part][tile][i];
          x = exp_of_difference(x, base[2 * part + (i >> 1)]);
          sum[2 * part + (i >> 1)] += x;
        }
      }
    }
    // Few short tiles have a new maximum.
    if (kTile <= 16 && !__any_sync(kAllLanes, has_grown)) return;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int tile = 0; tile < kDim / 8; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[part][tile][i] *= factor[2 * part + (i >> 1)];
      }
    }
  }

  // Rows of weight 0 are finite too.
  __device__ void add_values(const Row* v, int head_dim, const Scores& s) {
    constexpr int kPositionSteps = kTile / 16;
    const Place at = value_row_of(lane);
    uint32_t weights[kParts][kPositionSteps][4];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int step = 0; step < kPositionSteps; ++step) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const float* c = s[part][2 * step + weight_tile(r)] + weight_register(r);
          weights[part][step][r] = Operands::pack(c[0], c[1]);
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < kDim / 8; tile += 2) {
      if (8 * tile >= head_dim) break;
#pragma unroll
      for (int step = 0; step < kPositionSteps; ++step) {
        uint32_t b[4];
        load_matrices_trans(b, &v[16 * step + at.row][8 * tile + at.col]);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          Operands::multiply(o[part][tile], weights[part][step], b[0], b[1]);
          Operands::multiply(o[part][tile + 1], weights[part][step], b[2], b[3]);
        }
      }
    }
  }

  // Gives the lanes of a row its sum.
  __device__ void add_up() {
#pragma unroll
    for (int r = 0; r < kLaneRows; ++r) {
      sum[r] += __shfl_xor_sync(kAllLanes, sum[r], 1);
      sum[r] += __shfl_xor_sync(kAllLanes, sum[r], 2);
    }
  }
};

}  // namespace tandem::cuda
