// Fuses rope of the queries, rope of the keys and kv_write, which follow each other in most layers, into one
// launch; with them the norms of the heads of queries and keys, and hadamard of queries, keys and values, where heads are rotated
// before they are cached. For every token, some blocks rotate eight heads of queries each, some rotate eight heads of keys and then
// store them, some store eight heads of values; one warp normalizes or stores a row. Reads n * (H + 2 Hkv) * head_dim floats, writes back those that change, and the
// cache.
#pragma once

#include "ggml-cuda/ops/hadamard.cuh"
#include "ggml-cuda/ops/kv_store.cuh"
#include "ggml-cuda/ops/normalize.cuh"
#include "ggml-cuda/ops/rotation.cuh"

namespace tandem::cuda {

// The norm of each head (rms), before it is rotated.
struct HeadNorm {
  const float* x = nullptr;  // [n_tokens, heads * head_dim]; null: none
  PlainValues weight{};      // [n_weights, head_dim], taken in turn
  int n_weights = 1;
  float eps = 0.0f;
};

struct RopeKvCall {
  float* q;                  // [n_tokens, n_head * head_dim]
  float* kv[2];              // keys, values: [n_tokens, n_head_kv * head_dim], what the pools store
  Pool pools[2];             // keys, values
  const int32_t* positions;  // [n_tokens]
  const int32_t* slots;      // [n_tokens]
  int n_head, n_head_kv, head_dim, n_pairs, block_size;
  int q_parts, kv_parts;  // blocks a token for the queries; for the keys, and for the values
  Hadamard q_hadamard, kv_hadamard[2];
  HeadNorm norms[2];  // of queries; of keys: in place
};

// Part `part` of q_parts + 2 * kv_parts of a token's, by all threads of a block, kRotationThreads or more. rotation: as
// compute_rotations() makes it, of the token's position; not read for values.
template <RopeStyle kStyle>
__device__ inline void rope_kv_part(const RopeKvCall& call, int64_t token, int part, const float2* rotation) {
  const bool queries = part < call.q_parts, values = part >= call.q_parts + call.kv_parts;
  const int first = (queries ? part : (part - call.q_parts) % call.kv_parts) * kHeadsPerBlock;
  const int n_head = queries ? call.n_head : call.n_head_kv;
  const int n_here = min(kHeadsPerBlock, n_head - first);
  if (!values) {
    float* heads = (queries ? call.q : call.kv[0]) + (token * n_head + first) * call.head_dim;
    if (const HeadNorm& norm = call.norms[!queries]; norm.x) {
      const int h = static_cast<int>(threadIdx.x / kWarp);
      if (h < n_here) {
        const int64_t at = (token * n_head + first + h) * call.head_dim;
        const int w = (first + h) % norm.n_weights * call.head_dim;
        normalize_group<WarpTeam, 4, NormKind::rms>(norm.x + at, heads + h * call.head_dim, call.head_dim, norm.eps, norm.weight, w,
                                                    {nullptr, DType::F32});
      }
      __syncthreads();  // rotated by other threads
    }
    rotate_heads<kStyle>(heads, n_here, call.head_dim, call.n_pairs, rotation);
  }
  if (queries && call.q_hadamard.width == 0) return;
  __syncthreads();  // what is rotated is in memory
  const int head = first + static_cast<int>(threadIdx.x / kWarp);
  if (head >= first + n_here) return;
  const int64_t row = token * n_head + head;
  if (queries) return hadamard_row(call.q + row * call.head_dim, call.head_dim, call.q_hadamard);
  const Pool& pool = call.pools[values];
  if (const Hadamard h = call.kv_hadamard[values]; h.width > 0)
    hadamard_row(call.kv[values] + row * pool.head_dim, pool.head_dim, h);
  store_row(pool, row, {call.slots[token], head, n_head, call.block_size});
}

}  // namespace tandem::cuda
