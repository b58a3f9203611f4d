// KvIndex: what a cache in host memory has beside its rows so that attention can read it sparsely (SparseReads):
// - every key in 8 bits with a scale of its own, component by component: those of one component and head, of all slots,
//   are neighbours. Approximate scores of a whole text read only the components that matter, and read them in long runs.
// - the mean of the values of every block.
// Whatever writes rows of an indexed cache calls index_key() for each key and index_values() for each block that is whole.
//
// Bytes per slot and key-value head: head_dim_k + 4, and 2 * head_dim_v / block_size; of a cache of half floats a quarter
// more. Functions work on host memory and throw nothing.
#pragma once

#include "base/fp16.h"
#include "device/segment.h"

namespace tandem {

struct KvIndex {
  // Of a layer without memory, only the sizes.
  explicit KvIndex(const KvLayer& layer);

  int8_t* component(int64_t head, int64_t column) const {
    return components + (head * head_dim_k + column) * stride;
  }
  float* scales_of(int64_t head) const { return scales + head * stride; }
  fp16_t* mean(int64_t head, int64_t block) const { return means + (head * n_blocks + block) * head_dim_v; }

  int64_t head_dim_k, head_dim_v, n_blocks;
  int64_t
      stride;  // slots, and some more: streams of a power of two of bytes would share few sets of the caches
  size_t n_bytes;
  int8_t* components = nullptr;  // [n_head_kv, head_dim_k, stride]; key = component * scale
  float* scales = nullptr;       // [n_head_kv, stride]
  fp16_t* means = nullptr;       // [n_head_kv, n_blocks, head_dim_v]
};

// Returns the bytes of the layer's index; 0 if it has none.
size_t kv_index_bytes(const KvLayer& layer);

// Indexes the key in a slot, as it is stored.
void index_key(const KvLayer& layer, const KvIndex& index, int64_t slot, int64_t head);
// Indexes the values in a block, which is whole.
void index_values(const KvLayer& layer, const KvIndex& index, int64_t block);
// Indexes the keys of the first n_tokens slots of a block, and its values if that is all of them.
void index_block(const KvLayer& layer, int64_t block, int64_t n_tokens);

// Bytes of an indexed cache that a token reads for one key-value head, with n_positions before and of it.
int64_t sparse_read_bytes(const SparseReads& reads, const KvLayer& layer, int64_t n_positions);
// Positions that a token always reads of the first n, if it is at `position`; they are the first and the last of those.
struct AlwaysRead {
  int64_t n_first, n_last;
  int64_t n() const { return n_first + n_last; }
};
AlwaysRead always_read(const SparseReads& reads, int64_t n_positions, int64_t position);
// Whether a token reads fewer than all n positions.
bool reads_sparsely(const SparseReads& reads, int64_t block_size, int64_t n_positions, int64_t position);

}  // namespace tandem
