// Shared by the row-wise ops: sums over a warp or a block, small vectors of the model, element-wise launches.
#pragma once

#include <cfloat>

#include "ggml-cuda/compiled_op.h"
#include "ggml-cuda/launch.cuh"
#include "ggml-cuda/layout.h"
#include "ggml-cuda/portable.h"

namespace tandem::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// Every lane gets the result, the same bits on all.
__device__ inline float warp_sum(float v) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) v += __shfl_xor_sync(kAllLanes, v, mask);
  return v;
}
__device__ inline float warp_max(float v) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, mask));
  return v;
}

// Threads that work on one row together.
struct WarpTeam {
  __device__ static int rank() { return static_cast<int>(threadIdx.x % kWarp); }
  __device__ static int size() { return kWarp; }
  __device__ static float sum(float v) { return warp_sum(v); }
};
struct BlockTeam {  // of whole warps
  __device__ static int rank() { return static_cast<int>(threadIdx.x); }
  __device__ static int size() { return static_cast<int>(blockDim.x); }
  __device__ static float sum(float v) {
    __shared__ float partial[kWarp];
    v = warp_sum(v);
    __syncthreads();  // all threads have read the previous sum
    if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = v;
    __syncthreads();
    return warp_sum(threadIdx.x % kWarp < blockDim.x / kWarp ? partial[threadIdx.x % kWarp] : 0.0f);
  }
};

// A vector or matrix of a plain dtype; `data` may be null.
struct PlainValues {
  const void* data;
  DType dtype;

  __device__ float operator[](int64_t i) const {
    switch (dtype) {
      case DType::F16: return half_to_float(static_cast<const fp16_t*>(data)[i]);
      case DType::BF16: return bfloat_to_float(static_cast<const bf16_t*>(data)[i]);
      default: return static_cast<const float*>(data)[i];
    }
  }
  // Elements i .. i + 3; i is a multiple of 4 and so is the length of a row.
  __device__ float4 four(int64_t i) const {
    if (dtype == DType::F32) return *reinterpret_cast<const float4*>(static_cast<const float*>(data) + i);
    const ushort4 h = *reinterpret_cast<const ushort4*>(static_cast<const uint16_t*>(data) + i);
    if (dtype == DType::F16)
      return {half_to_float(h.x), half_to_float(h.y), half_to_float(h.z), half_to_float(h.w)};
    return {bfloat_to_float(h.x), bfloat_to_float(h.y), bfloat_to_float(h.z), bfloat_to_float(h.w)};
  }
  // Prefetches the line of element i: weights may be read before the previous kernel has ended.
  __device__ void prefetch(int64_t i) const {
    if (data == nullptr) return;
    prefetch_to_l2(static_cast<const char*>(data) + i * (dtype == DType::F32 ? 4 : 2));
  }
};

inline PlainValues plain_values(const CompileContext& context, TensorId id) {
  if (id == kNoTensor) return {nullptr, DType::F32};
  return {context.address<const void>(id), context.tensor(id).dtype};
}

// Returns "name: dtype Q4_K is not read by norm" for a tensor that exists and is not plain; else empty.
inline std::string why_not_plain(const Graph& graph, TensorId id, const char* op) {
  if (id == kNoTensor || is_plain(graph.tensor(id).dtype)) return "";
  return graph.tensor(id).name + ": " + op + " does not read " +
         std::string(dtype_name(graph.tensor(id).dtype));
}

inline unsigned blocks_of(int64_t n_items, int64_t items_per_block) {
  return static_cast<unsigned>((n_items + items_per_block - 1) / items_per_block);
}

// y[i] = f(a[i], b[i]) over n floats; b may be null for unary functions. Four elements per thread; the first
// threads do the last one to three. Bytes: 4 n per array.
inline constexpr int kMapThreads = 256;
template <class Fn>
__global__ void __launch_bounds__(kMapThreads)
    map_floats(Fn f, const float* a, const float* b, float* y, int64_t n) {
  let_next_begin();
  wait_for_previous();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t n_fours = n / 4;
  if (i < n_fours) {
    const float4 p = reinterpret_cast<const float4*>(a)[i];
    const float4 q = b ? reinterpret_cast<const float4*>(b)[i] : float4{};
    reinterpret_cast<float4*>(y)[i] = {f(p.x, q.x), f(p.y, q.y), f(p.z, q.z), f(p.w, q.w)};
  }
  if (i < n % 4) {
    const int64_t at = 4 * n_fours + i;
    y[at] = f(a[at], b ? b[at] : 0.0f);
  }
}

template <class Fn>
void launch_map(const LaunchContext& context, Fn f, const float* a, const float* b, float* y, int64_t n) {
  if (n == 0) return;
  launch_overlapping(map_floats<Fn>, blocks_of((n + 3) / 4, kMapThreads), kMapThreads, 0, context.stream, f,
                     a, b, y, n);
}

}  // namespace tandem::cuda
