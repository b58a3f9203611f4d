// The Hadamard transform of runs of columns, by one warp. Sums are those of the reference (graph/hadamard.h), bit for bit.
#pragma once

#include "ggml-cuda/ops/rows.cuh"
#include "graph/hadamard.h"

namespace tandem::cuda {

// A width and its scale; width 0: no rotation.
struct Hadamard {
  int width = 0;
  float scale = 1.0f;
};
inline Hadamard make_hadamard(int64_t width) {
  return {static_cast<int>(width), width > 0 ? hadamard_scale(width) : 1.0f};
}

// Columns that a warp transforms at once: a run, or two of 16.
TANDEM_HD inline int hadamard_step(int width) {
  return width > kWarp ? width : kWarp;
}

// All lanes of a warp transform the runs of n columns in place; each lane reads and writes the same ones. Column
// 32 j + lane of a step is in register j: strides below 32 are between lanes, the others between registers.
__device__ inline void hadamard_row(float* row, int n, Hadamard h) {
  constexpr int kMaxRegisters = kMaxHadamard / kWarp;
  const int lane = threadIdx.x % kWarp, step = hadamard_step(h.width), n_registers = step / kWarp;
  for (int first = 0; first < n; first += step) {
    float x[kMaxRegisters];
#pragma unroll
    for (int j = 0; j < kMaxRegisters; ++j) {
      if (j >= n_registers) continue;
      const int i = first + j * kWarp + lane;
      x[j] = i < n ? row[i] : 0.0f;
      for (int stride = 1; stride < min(h.width, kWarp); stride *= 2) {
        const float other = __shfl_xor_sync(kAllLanes, x[j], stride);
        x[j] = lane & stride ? other - x[j] : x[j] + other;
      }
    }
#pragma unroll
    for (int stride = 1; stride < kMaxRegisters; stride *= 2) {
      if (stride >= n_registers) continue;
#pragma unroll
      for (int j = 0; j < kMaxRegisters; ++j) {
        if (j & stride || j >= n_registers) continue;
        const float a = x[j], b = x[j + stride];
        x[j] = a + b;
        x[j + stride] = a - b;
      }
    }
#pragma unroll
    for (int j = 0; j < kMaxRegisters; ++j) {
      const int i = first + j * kWarp + lane;
      if (j < n_registers && i < n) row[i] = mul_rn(x[j], h.scale);
    }
  }
}

}  // namespace tandem::cuda
