// Attention with any head dims, block sizes and cache dtypes, in floats: the fallback of the other kernels.
//
// A block has a token and a query head and processes 128 positions at a time: each thread computes one score,
// then owns every 128th column of the sum. A thread reads keys row by row, uncoalesced, and every query head
// reads them again: n_tokens * H * positions * (row_bytes_k + row_bytes_v) bytes of cache traffic.
#include "ggml-cuda/attention_rows.cuh"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 128;

template <class Combine>
__device__ float over_block(float v, Combine combine) {
  __shared__ float of_warps[kThreads / kWarp];
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) v = combine(v, __shfl_xor_sync(kAllLanes, v, mask));
  __syncthreads();  // all threads have read the previous result
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = v;
  __syncthreads();
  v = of_warps[0];
#pragma unroll
  for (int w = 1; w < kThreads / kWarp; ++w) v = combine(v, of_warps[w]);
  return v;
}

__device__ RowAt row_of(const AttentionCall& call, const CachePool& pool, const int32_t* table, int kv_head,
                        int position) {
  const int block = table[position / call.block_size];
  return row_at(call, pool, block, call.place_of(block), kv_head, position % call.block_size);
}

// The sum is kept in y, which only this block writes, so head dims have no limit.
__global__ void __launch_bounds__(kThreads) attention_simple(const __grid_constant__ AttentionCall call) {
  __shared__ float weights[kThreads];
  const int token = blockIdx.x, head = blockIdx.y, kv_head = head / call.group, tid = threadIdx.x;
  const int64_t row = static_cast<int64_t>(token) * call.n_head + head;
  const float* q = call.q + row * call.k.head_dim;
  float* y = call.y_of(token, head);
  const int32_t* table = call.block_table + static_cast<int64_t>(call.sequences[token]) * call.max_blocks;
  const PositionRange range =
      call.in_part(seen_by(call.positions[token], call.window), call.sequences[token]);
  const float sink = sink_of(call, head);
  float max = sink, sum = call.sinks.data ? 1.0f : 0.0f;
  for (int d = tid; d < call.v.head_dim; d += kThreads) y[d] = 0.0f;

  for (int first = range.begin; first < range.end; first += kThreads) {
    const int n = int_min(kThreads, range.end - first);
    float s = -INFINITY;
    if (tid < n) {
      const RowAt k = row_of(call, call.k, table, kv_head, first + tid);
      float dot = 0.0f;
      for (int d = 0; d < call.k.head_dim; ++d) dot += q[d] * k.one(d);
      s = capped(dot * call.scale, call.softcap);
    }
    const float most = fmaxf(max, over_block(s, [](float a, float b) { return fmaxf(a, b); }));
    const float base = finite_max(most), factor = exp_of(max - base),
                weight = tid < n ? exp_of(s - base) : 0.0f;
    max = most;
    sum = sum * factor + over_block(weight, [](float a, float b) { return a + b; });
    weights[tid] = weight;
    __syncthreads();
    for (int d = tid; d < call.v.head_dim; d += kThreads) {
      float value = y[d] * factor;
      for (int i = 0; i < n; ++i) {
        value += weights[i] * row_of(call, call.v, table, kv_head, first + i).one(d);
      }
      y[d] = value;
    }
    __syncthreads();
  }
  const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
  for (int d = tid; d < call.v.head_dim; d += kThreads) y[d] *= inverse;
  if (tid == 0) call.put_logarithm(token, head, finite_max(max), sum);
}

}  // namespace

void launch_simple(const AttentionCall& call, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(call.n_tokens), static_cast<unsigned>(call.n_head));
  attention_simple<<<grid, kThreads, 0, stream>>>(call);
  check_launch("attention_simple");
}

}  // namespace tandem::cuda
