// Chooses among the kernels of attention_decode.cuh, which the other files of this name have, and launches them.
#include "ggml-cuda/attention_decode.cuh"

namespace tandem::cuda {
namespace {

constexpr int kMergeThreads = 128;

// Where decode does not merge itself, and for the other kernels. A block has n_heads of a token.
__global__ void __launch_bounds__(kMergeThreads)
    attention_merge(const __grid_constant__ AttentionCall call, int n_heads) {
  extern __shared__ __align__(16) uint8_t shared[];
  let_next_begin();
  wait_for_previous();
  const int row0 = static_cast<int>(blockIdx.x) * n_heads;
  merge_heads(call, reinterpret_cast<float*>(shared), call.n_splits, row0 / call.n_head, row0 % call.n_head, n_heads);
}

AttentionKernel choose(const AttentionCall& call) {
  if (call.k.dtype == call.v.dtype) {
    switch (call.k.dtype) {
      case DType::F16: return decode_kernel_of<ReadF16, ReadF16>(call);
      case DType::BF16: return decode_kernel_of<ReadBF16, ReadBF16>(call);
      case DType::Q8_0: return decode_kernel_of<ReadQ8_0, ReadQ8_0>(call);
      case DType::Q4_0: return decode_kernel_of<ReadQ4_0, ReadQ4_0>(call);
      case DType::KIVI4: return decode_kernel_of<ReadKiviKeys<4>, ReadKiviValues<4>>(call);
      case DType::KIVI2: return decode_kernel_of<ReadKiviKeys<2>, ReadKiviValues<2>>(call);
      default: break;
    }
  }
  return decode_kernel_of<ReadAny, ReadAny>(call);
}

}  // namespace

AttentionKernel decode_kernel(const AttentionCall& call, size_t shared_limit) {
  const int most = int_max(call.k.head_dim, call.v.head_dim);
  const bool fits = most <= 256 && call.k.head_dim % 8 == 0 && call.v.head_dim % 8 == 0;
  if (!fits || call.block_size % kDecodeTile != 0) return {};
  AttentionKernel chosen = choose(call);
  const int tiles = WarpMemory(call.k, call.v).size(chosen.heads), left = left_floats(chosen.heads, call.v.head_dim) * 4;
  const auto n_bytes = static_cast<size_t>(int_max(tiles, left));
  const int n_warps = warps_for_two_blocks(kDecodeThreads / kWarp, n_bytes, shared_limit);
  chosen.n_threads = n_warps * kWarp;
  chosen.shared_bytes = static_cast<size_t>(n_warps) * n_bytes;
  return chosen.shared_bytes + 64 <= shared_limit ? chosen : AttentionKernel{};  // a little is static
}

void launch_decode(const AttentionKernel& kernel, const AttentionCall& call, cudaStream_t stream) {
  const int n_parts = (call.group + kernel.heads - 1) / kernel.heads;
  const dim3 grid(static_cast<unsigned>(call.n_tokens), static_cast<unsigned>(call.n_head_kv * n_parts),
                  static_cast<unsigned>(call.n_splits));
  launch_overlapping(kernel.kernel, grid, kernel.n_threads, kernel.shared_bytes, stream, call);
}

bool makes_merged_bytes(const AttentionCall& call) {
  const int head_dim = call.v.head_dim;
  return call.part == CachePart::whole && head_dim >= kWarp && kMergeColumns % head_dim == 0 &&
         call.n_head * head_dim % kMergeColumns == 0;
}

bool merges_itself(const AttentionKernel& kernel, const AttentionCall& call, size_t n_counters) {
  const int n_parts = (call.group + kernel.heads - 1) / kernel.heads;
  const int n_heads = int_min(kernel.heads, call.group);
  const auto n_bytes =
      sizeof(float) * static_cast<size_t>(merge_floats(n_heads, call.n_splits, call.v.head_dim));
  if (static_cast<size_t>(call.n_tokens) * static_cast<size_t>(call.n_head_kv * n_parts) > n_counters ||
      n_bytes > kernel.shared_bytes)
    return false;
  return !call.made.any() || (call.group % n_heads == 0 && n_heads * call.v.head_dim % kMergeColumns == 0);
}

void launch_merge(const AttentionCall& call, cudaStream_t stream) {
  const int n_heads = call.made.any() ? kMergeColumns / call.v.head_dim : 1;
  const auto n_bytes =
      sizeof(float) * static_cast<size_t>(merge_floats(n_heads, call.n_splits, call.v.head_dim));
  launch_overlapping(attention_merge, static_cast<unsigned>(call.n_tokens * call.n_head / n_heads),
                     kMergeThreads, n_bytes, stream, call, n_heads);
}

}  // namespace tandem::cuda
