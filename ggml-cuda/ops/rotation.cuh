// Rotations inside kernels: a block first computes the cosines and sines of its token into shared memory,
// then rotates the pairs of its heads. Sums are not contracted: they match the scalar reference.
#pragma once

#include <numbers>
#include <vector>

#include "ggml-cuda/ops/rope_angle.h"
#include "ggml-cuda/ops/rows.cuh"
#include "gguf/quants.h"
#include "graph/rope_frequencies.h"

namespace tandem::cuda {

inline constexpr int kMaxPairs = 256;
inline constexpr int kHeadsPerBlock = 8;
inline constexpr int kRotationThreads = kHeadsPerBlock * kWarp;

// Passed to kernels by value: a captured graph carries it, and nothing is allocated.
struct RopeTable {
  double turns_per_position[kMaxPairs];
  float magnitude;
  float temperature_scale;  // rope_temperature(), on the device
  int temperature_length;
};

// The table of a rope op; its factors are read from the mapped file.
inline RopeTable rope_table(const CompileContext& context, const RopeOp& op) {
  std::vector<float> factors;
  if (op.freq_factors != kNoTensor) {
    const Weight& weight = *context.tensor(op.freq_factors).weight;
    factors.resize(weight.n_cols);
    dequantize_row(weight.dtype, weight.data, factors.data(), weight.n_cols);
  }
  const std::vector<double> frequency = rope_frequencies(op, factors);
  TANDEM_CHECK(frequency.size() <= kMaxPairs);
  RopeTable table{};
  for (size_t i = 0; i < frequency.size(); ++i)
    table.turns_per_position[i] = frequency[i] / (2 * std::numbers::pi);
  table.magnitude = rope_magnitude(op);
  table.temperature_scale = op.temperature_scale;
  table.temperature_length = static_cast<int>(op.temperature_length);
  return table;
}

// All threads of the block; rotation [n_pairs] (cosine, sine) in shared memory is ready for all of them at
// the end.
template <class Table>  // RopeTable, or one for fewer pairs
__device__ inline void compute_rotations(const Table& table, int32_t position, int n_pairs, float2* rotation) {
  float magnitude = table.magnitude;
  if (table.temperature_scale != 0.0f) {
    magnitude *=
        1.0f + table.temperature_scale * log1pf(static_cast<float>(position / table.temperature_length));
  }
  for (int i = threadIdx.x; i < n_pairs; i += blockDim.x) {
    float sine, cosine;
    sincospif(2.0f * fraction_of_turn(table.turns_per_position[i], position), &sine, &cosine);
    rotation[i] = {magnitude * cosine, magnitude * sine};
  }
  __syncthreads();
}

// All threads of the block rotate heads [n_heads, head_dim].
template <RopeStyle kStyle>
__device__ void rotate_heads(float* heads, int n_heads, int head_dim, int n_pairs, const float2* rotation) {
  for (int i = threadIdx.x; i < n_heads * n_pairs; i += blockDim.x) {
    const int head = i / n_pairs, pair = i % n_pairs;
    float* a = heads + head * head_dim + (kStyle == RopeStyle::pair ? 2 * pair : pair);
    float* b = a + (kStyle == RopeStyle::pair ? 1 : n_pairs);
    const float2 r = rotation[pair];
    const float p = *a, q = *b;
    *a = add_rn(mul_rn(p, r.x), -mul_rn(q, r.y));
    *b = add_rn(mul_rn(p, r.y), mul_rn(q, r.x));
  }
}

}  // namespace tandem::cuda
