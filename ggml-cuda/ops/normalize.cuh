// The norm of one group of columns, by a team of threads.
#pragma once

#include "ggml-cuda/ops/rows.cuh"

namespace tandem::cuda {

__device__ inline float sum_of(float4 v) {
  return (v.x + v.y) + (v.z + v.w);
}
__device__ inline float squares_of(float4 v, float mean) {
  v = {v.x - mean, v.y - mean, v.z - mean, v.w - mean};
  return (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
}

// Four elements at a time, or one where the group is no multiple of four.
template <int kWidth>
struct Access;
template <>
struct Access<4> {
  using Value = float4;
  __device__ static float4 weight(const PlainValues& w, int i) { return w.four(4 * i); }
  __device__ static float4 scaled(float4 x, float mean, float scale, float4 w) {
    return {(x.x - mean) * scale * w.x, (x.y - mean) * scale * w.y, (x.z - mean) * scale * w.z,
            (x.w - mean) * scale * w.w};
  }
  __device__ static float4 plus(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
};
template <>
struct Access<1> {
  using Value = float;
  __device__ static float weight(const PlainValues& w, int i) { return w[i]; }
  __device__ static float scaled(float x, float mean, float scale, float w) { return (x - mean) * scale * w; }
  __device__ static float plus(float a, float b) { return a + b; }
};
__device__ inline float sum_of(float v) {
  return v;
}
__device__ inline float squares_of(float v, float mean) {
  return (v - mean) * (v - mean);
}

// x, y [group], which may be the same; the weight's columns begin at element w, those of the bias, if there is one, at 0. What the
// second and third pass read are hits of the L1 cache.
template <class Team, int kWidth, NormKind kKind>
__device__ inline void normalize_group(const float* x_columns, float* y_columns, int group, float eps, const PlainValues& weight, int w,
                                       const PlainValues& bias) {
  using A = Access<kWidth>;
  using V = typename A::Value;
  const int n = group / kWidth;
  const V* x = reinterpret_cast<const V*>(x_columns);
  V* y = reinterpret_cast<V*>(y_columns);
  float mean = 0.0f;
  if (kKind == NormKind::layer) {
    float sum = 0.0f;
    for (int i = Team::rank(); i < n; i += Team::size()) sum += sum_of(x[i]);
    mean = Team::sum(sum) / static_cast<float>(group);
  }
  float squares = 0.0f;
  for (int i = Team::rank(); i < n; i += Team::size()) squares += squares_of(x[i], mean);
  const float scale = 1.0f / sqrtf(Team::sum(squares) / static_cast<float>(group) + eps);
  for (int i = Team::rank(); i < n; i += Team::size()) {
    V v = A::scaled(x[i], mean, scale, A::weight(weight, w / kWidth + i));
    if (bias.data) v = A::plus(v, A::weight(bias, i));
    y[i] = v;
  }
}

}  // namespace tandem::cuda
