// The keys and values that each head makes from the latent rows of a cache, for the expanded form of latent attention
// (ops/latent_rows.cu).
#pragma once

#include "ggml-cuda/attention_call.cuh"

namespace tandem::cuda {

struct LatentRowsCall {
  CachePool cache;             // rows of rank + n_rot columns
  const int32_t* sequence;     // row of block_table
  const int32_t* block_table;  // [n_sequences, max_blocks]
  int block_size, max_blocks;
  int first, n;                             // positions; the first n of `chunk` rows of each head are made
  int n_head, rank, n_rot, n_key, n_value;  // n_key: columns of keys without the rotated ones
  int chunk;
  const uint16_t* k_up;  // [n_head, rank, n_key]
  const uint16_t* v_up;  // [n_head, n_value, rank]
  uint16_t* keys;        // [n_head, chunk, n_key + n_rot]
  uint16_t* values;      // [n_head, chunk, n_value]
};

// Sizes are multiples of eight; weights and rows are F16 or BF16, the cache is too or is quantized.
bool makes_latent_rows(const LatentRowsCall& call);
void launch_latent_rows(DType dtype, const LatentRowsCall& call, cudaStream_t stream);

}  // namespace tandem::cuda
