// Attention over the block cache, flash style: scores of a tile of queries against one cache block at a time,
// with a running maximum and sum, so nothing of size n x context is ever stored (arXiv:2205.14135).
#pragma once

#include <cstddef>
#include <cstdint>

#include "gguf/dtype.h"

namespace tandem::cpu {

// A query's result depends only on the positions that it may see. Outside [kv_begin, kv_end) the kernels read
// no cache rows except the rest of the last block, whose contents do not matter. Values at positions that
// only some queries of a tile see must be finite, or the other queries' results become NaN too.
//
// The part of one key-value head's cache that a tile of queries reads.
struct AttentionCall {
  DType k_dtype, v_dtype;  // of kCacheDTypes or kGroupedDTypes (device/cache_dtypes.h)
  int64_t head_dim_k = 0, head_dim_v = 0;
  int64_t block_size = 0;  // slots in a block
  // First row of this head in block b: k + block_table[b] * k_block_stride (v likewise), rows contiguous.
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
  size_t k_block_stride = 0, v_block_stride = 0;  // bytes from block to block
  // Blocks from number n_blocks on are elsewhere, the first of them at k_spilled (v likewise).
  int32_t n_blocks = INT32_MAX;
  const std::byte* k_spilled = nullptr;
  const std::byte* v_spilled = nullptr;
  bool values_in_keys = false;           // the first head_dim_v columns of the keys; v is unused
  const int32_t* block_table = nullptr;  // of this sequence
  // Of grouped dtypes: F16 rows of block b at k_open + open_of[b] * k_open_stride, if that is not -1.
  const int32_t* open_of = nullptr;
  const std::byte* k_open = nullptr;
  const std::byte* v_open = nullptr;
  size_t k_open_stride = 0, v_open_stride = 0;
  float scale = 1.0f, softcap = 0.0f;
  int64_t window = 0;

  int64_t n_queries = 0;               // rows of the tile: tokens x query heads of this kv head
  const float* const* q = nullptr;     // [n_queries] pointers to head_dim_k floats
  const int32_t* positions = nullptr;  // [n_queries] position of each query
  int64_t kv_begin = 0, kv_end = 0;    // cached positions to read; kv_begin is a multiple of block_size
  int64_t kv_then = 0;  // positions behind them, in the block table too, that the next call reads

  // Unnormalized result over [kv_begin, kv_end): acc = sum of exp(s - max) * v, sum of exp(s - max), and max.
  // A query that sees no position gets max = -inf, sum = 0, acc = 0.
  float* acc = nullptr;  // [n_queries, head_dim_v]
  float* sum = nullptr;  // [n_queries]
  float* max = nullptr;  // [n_queries]
};

// Most heads that attend_heads() has under way at a time.
inline constexpr int64_t kHeadsAtOnce = 32;

struct AttentionKernels {
  int64_t max_queries;  // maximum rows of a tile
  // Depends only on dtypes, head dims, block size and n_queries, and never decreases as n_queries grows.
  size_t (*scratch_bytes)(const AttentionCall& call);
  void (*attend)(const AttentionCall& call, std::byte* scratch);
  // Converts a row of n floats to the cache's dtype (n is a multiple of its block).
  void (*store_row)(DType dtype, const float* from, std::byte* to, int64_t n);
  // Whether attend_heads() is the better way to read a long cache with such a call. nullptr: never.
  bool (*takes_heads)(const AttentionCall& call) = nullptr;
  // attend() for n key-value heads in the order of memory, with calls that takes_heads() accepts. They differ in their addresses only,
  // those of spilled blocks by as much as the others: rows of a block are neighbours, one stretch of memory. Scratch:
  // scratch_bytes() for each of min(n, kHeadsAtOnce) heads.
  void (*attend_heads)(const AttentionCall* calls, int64_t n, std::byte* scratch) = nullptr;
};

namespace scalar {
const AttentionKernels& attention_kernels();
}
namespace avx2 {
const AttentionKernels& attention_kernels();
bool takes(const AttentionCall& call);  // whether in integers: of few queries and a quantized cache
}  // namespace avx2
namespace avx_vnni {
const AttentionKernels& attention_kernels();
bool takes(const AttentionCall& call);  // likewise
}  // namespace avx_vnni
namespace avx512 {
const AttentionKernels& attention_kernels();
}
namespace avx512_vnni {
const AttentionKernels& attention_kernels();
bool takes(const AttentionCall& call);  // likewise
}  // namespace avx512_vnni
namespace avx512_bf16 {
const AttentionKernels& attention_kernels();  // no store_row
// Whether they are faster than those of avx512_vnni, and as exact as the call wants: not for few queries or a
// cache of F32.
bool takes(const AttentionCall& call);
}  // namespace avx512_bf16
namespace avx512_amx {
const AttentionKernels& attention_kernels();  // no store_row
bool takes(const AttentionCall& call);        // likewise, and:
// Whether in tiles of bytes: of 5 to 16 queries and a cache of Q8_0 or Q4_0, as exact as avx512_vnni.
bool takes_code_tiles(const AttentionCall& call);
}  // namespace avx512_amx

}  // namespace tandem::cpu
