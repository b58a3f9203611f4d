// The kernels of attention_decode.cuh for caches that are read with ReadK and ReadV. A cache's take the compiler a minute, so
// there are several ops/attention_decode_*.cu, compiled side by side.
#pragma once

#include "ggml-cuda/attention_decode.cuh"

namespace tandem::cuda {

// Grid: x token, y key-value head x part of its group, z split.
template <class ReadK, class ReadV, int kLanes, int kHeads>
__global__ void __launch_bounds__(kDecodeThreads)
    attention_decode(const __grid_constant__ AttentionCall call) {
  extern __shared__ __align__(16) uint8_t shared[];
  let_next_begin();
  int* const counter = call.counters ? call.counters + blockIdx.x * gridDim.y + blockIdx.y : nullptr;
  decode_split<ReadK, ReadV, kLanes, kHeads>(call, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y),
                                             static_cast<int>(blockIdx.z), counter, shared);
}

template <class ReadK, class ReadV, int kLanes>
AttentionKernel choose_heads(int group) {
  if (group == 1) return {attention_decode<ReadK, ReadV, kLanes, 1>, 0, 0, 1};
  if (group <= 4) return {attention_decode<ReadK, ReadV, kLanes, 4>, 0, 0, 4};
  return {attention_decode<ReadK, ReadV, kLanes, 8>, 0, 0, 8};
}

template <class ReadK, class ReadV>
AttentionKernel decode_kernel_of(const AttentionCall& call) {
  const int most = int_max(call.k.head_dim, call.v.head_dim);
  if (most <= 64) return choose_heads<ReadK, ReadV, 8>(call.group);
  if (most <= 128) return choose_heads<ReadK, ReadV, 16>(call.group);
  return choose_heads<ReadK, ReadV, 32>(call.group);
}

}  // namespace tandem::cuda
