// The arguments of the attention kernels, and the kernel files:
//
// - attention_decode.cu: few tokens; reads the cache once, with as many blocks as the GPU has room for; all
// in floats.
//
// - attention_packed.cu: few tokens; tensor cores.
//
// - attention_prefill.cu: many tokens; tensor cores.
//
// - attention_latent.cu: values in the keys, of heads that are too wide for the others; tensor cores.
//
// - attention_simple.cu: whatever the others do not support (odd head dims or block sizes).
//
// All but the last write partial results of splits of the positions, attention_prefill only where n_splits > 1;
// attention_merge (attention_decode.cu), or the last block of the first two, combines them into y.
#pragma once

#include "ggml-cuda/async_copy.cuh"
#include "ggml-cuda/attention_fragments.h"
#include "ggml-cuda/attention_index.h"
#include "ggml-cuda/kivi_rows.h"
#include "ggml-cuda/made_bytes.h"
#include "ggml-cuda/ops/rows.cuh"

namespace tandem::cuda {

// One of the two pools of a layer's cache.
struct CachePool {
  const uint8_t* data;
  DType dtype;
  int head_dim;
  int row_bytes;
  Half half = Half::keys;
  const uint8_t* open = nullptr;  // of grouped dtypes: F16 rows of the open blocks
  int first_head = 0,
      n_more_heads = 0;  // of keys in several sets: where the set's begin, the heads of the others

  __device__ const uint8_t* row(int64_t index) const { return data + index * row_bytes; }
  __device__ const uint8_t* open_row(int64_t index) const { return open + index * 2 * head_dim; }
};

struct AttentionCall {
  const float* q;              // [n_tokens, n_head * head_dim_k]
  const int32_t* positions;    // [n_tokens]
  const int32_t* sequences;    // [n_tokens]
  const int32_t* block_table;  // [n_sequences, max_blocks]
  const int32_t* open_of;      // of grouped dtypes: [n_blocks] an open block's place, or -1; null of others
  const int32_t* hot_from;     // [n_sequences]; null over the whole cache
  PlainValues sinks;           // [n_head]; may be absent
  float* y;                    // [n_tokens, y_cols]: n_head * head_dim_v, over a part n_head logarithms more
  CachePool k, v;
  CachePart part;
  int chunk_first, chunk_size;             // positions of a chunk
  int n_tokens, n_head, n_head_kv, group;  // group: query heads a key-value head
  int y_cols;
  int block_size, max_blocks, window;
  float scale, softcap;
  // Partial results of splits: acc = sum of exp(s - max) * v, unnormalized. A split that saw nothing has sum
  // 0 and leaves its acc unwritten.
  int n_splits;
  float* acc;      // [n_tokens, n_head, n_splits, head_dim_v]
  float* max;      // [n_tokens, n_head, n_splits]
  float* sum;      // [n_tokens, n_head, n_splits]
  MadeBytes made;  // of y, by the merge
  int* counters;   // [n_tokens * blocks of heads], all 0: attention_decode and attention_packed merge their splits themselves; or null

  // Returns the range of the block table's positions that a token sees.
  __device__ PositionRange in_part(PositionRange seen, int sequence) const {
    if (part == CachePart::chunk) return seen_of_chunk(seen, chunk_first, chunk_size);
    if (part == CachePart::whole) return seen;
    return seen_of_part(seen, part, part == CachePart::merged ? 0 : hot_from[sequence]);
  }

  __device__ float* y_of(int token, int head) const {
    return y + static_cast<int64_t>(token) * y_cols + static_cast<int64_t>(head) * v.head_dim;
  }
  // Stores the logarithm of a part's softmax sum, from its maximum score and the sum of e^(score - maximum).
  __device__ void put_logarithm(int token, int head, float greatest, float total) const {
    if (part == CachePart::whole) return;
    y[static_cast<int64_t>(token) * y_cols + static_cast<int64_t>(n_head) * v.head_dim + head] =
        total == 0.0f ? -INFINITY : greatest + logf(total);
  }

  // The row `offset` of a key-value head in a block of a pool, or in an open block.
  __device__ int64_t row_in(const CachePool& pool, int block, int kv_head, int offset) const {
    return block_row(block, pool.first_head + kv_head, offset, n_head_kv + pool.n_more_heads, block_size);
  }

  // The place of a block among the open ones, or -1.
  __device__ int place_of(int block) const { return open_of ? open_of[block] : -1; }

  // Row index of partial results.
  __device__ int64_t partial(int token, int head, int split) const {
    return (static_cast<int64_t>(token) * n_head + head) * n_splits + split;
  }
};

// The score of a dot product that already includes `scale`.
__device__ inline float capped(float s, float softcap) {
  return softcap > 0.0f ? softcap * tanhf(s / softcap) : s;
}

// 2^x to about 2 units in the last place for x near 0; 0 for -inf.
__device__ inline float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
inline constexpr float kLog2E = 1.4426950408889634f;
__device__ inline float exp_of(float x) {
  return power_of_2(x * kLog2E);
}
// e^(x - base), base being finite, in one operation less.
__device__ inline float exp_of_difference(float x, float base) {
  return power_of_2(fmaf(x, kLog2E, -base * kLog2E));
}

__device__ inline float sink_of(const AttentionCall& call, int head) {
  return call.sinks.data ? call.sinks[head] : -INFINITY;
}

// A kernel with its launch shape, chosen when an op is compiled.
struct AttentionKernel {
  void (*kernel)(AttentionCall) = nullptr;
  int n_threads = 0;
  size_t shared_bytes = 0;
  int heads = 1;  // decode: query heads a block
  int query_rows = kQueryTile;  // prefill: a block
  int n_resident = 2;           // packed: blocks that a multiprocessor has room for
};

// Decode: any group; head dims up to 256 that are multiples of eight, block sizes that are multiples of
// kDecodeTile.
AttentionKernel decode_kernel(const AttentionCall& call, size_t shared_limit);
void launch_decode(const AttentionKernel& kernel, const AttentionCall& call, cudaStream_t stream);
// Packed: any group; head dims up to 128 that are multiples of eight, block sizes that are multiples of kDecodeTile; caches of
// F16, BF16, Q8_0 or Q4_0, keys and values alike.
inline constexpr int kPackedRows = 16;  // query rows a block, of so many neighbouring tokens at most:
TANDEM_HD inline int packed_tokens(int group) {
  return int_max(1, kPackedRows / group);
}
AttentionKernel packed_kernel(const AttentionCall& call, size_t shared_limit);
void launch_packed(const AttentionKernel& kernel, const AttentionCall& call, cudaStream_t stream);
// Prefill: any group and block size; caches that are BF16, or F16 and block types in any mixture.
AttentionKernel prefill_kernel(const AttentionCall& call, size_t shared_limit);
// Twice as many query rows a block, of caches that are F16 or BF16, where two such blocks fit on a multiprocessor.
AttentionKernel wide_prefill_kernel(const AttentionCall& call, size_t shared_limit);
void launch_prefill(const AttentionKernel& kernel, const AttentionCall& call, cudaStream_t stream);
// Values in the keys: any group and block size; keys up to 576 columns, values up to 512, multiples of eight; caches
// that are F16, BF16, Q8_0 or Q4_0.
inline constexpr int kLatentHeads = 16;  // query heads a block
AttentionKernel latent_kernel(const AttentionCall& call, size_t shared_limit);
void launch_latent(const AttentionKernel& kernel, const AttentionCall& call, cudaStream_t stream);
// Whether the merge can make bytes of y.
bool makes_merged_bytes(const AttentionCall& call);
// Whether decode or packed can merge the splits itself, with n_counters counters.
bool merges_itself(const AttentionKernel& kernel, const AttentionCall& call, size_t n_counters);
void launch_merge(const AttentionCall& call, cudaStream_t stream);
// Anything.
void launch_simple(const AttentionCall& call, cudaStream_t stream);

}  // namespace tandem::cuda
