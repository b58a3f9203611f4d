// Stores rows into the cache: one warp per row (a token's keys or values of one head), 32 elements at a time:
// coalesced floats in, one quantized block or 64 to 128 contiguous bytes out.
#pragma once

#include <algorithm>
#include <iterator>

#include "device/cache_dtypes.h"
#include "ggml-cuda/ops/kv_rows.h"
#include "ggml-cuda/ops/rows.cuh"
#include "gguf/kivi.h"

namespace tandem::cuda {

// Source and destination of a store: keys or values of a layer.
struct Pool {
  const float* from;  // [n_tokens, n_head_kv * head_dim]
  std::byte* to;      // rows of row_bytes
  DType dtype;
  int head_dim;
  int64_t row_bytes;
  const int32_t* open_of = nullptr;  // of open blocks: [n_blocks] their places in `to`
};

inline Pool make_pool(const float* from, std::byte* to, DType dtype, int64_t head_dim) {
  TANDEM_CHECK(std::ranges::find(kCacheDTypes, dtype) != std::end(kCacheDTypes));
  return {from, to, dtype, static_cast<int>(head_dim), static_cast<int64_t>(row_bytes(dtype, head_dim))};
}
// Those of a layer; rows of grouped dtypes go to their open blocks, as F16.
inline Pool open_pool(const float* from, std::byte* to, int64_t head_dim, const KvLayer& kv) {
  Pool pool = make_pool(from, to, DType::F16, head_dim);
  pool.open_of = reinterpret_cast<const int32_t*>(kv.open_table);
  return pool;
}
inline Pool key_pool(const float* from, const KvLayer& kv) {
  return is_kivi(kv.k_dtype) ? open_pool(from, kv.k_open, kv.head_dim_k, kv)
                             : make_pool(from, kv.k, kv.k_dtype, kv.head_dim_k);
}
inline Pool value_pool(const float* from, const KvLayer& kv) {
  return is_kivi(kv.v_dtype) ? open_pool(from, kv.v_open, kv.head_dim_v, kv)
                             : make_pool(from, kv.v, kv.v_dtype, kv.head_dim_v);
}

// Of 32 elements, one per lane, returns the first of largest magnitude; 0 when all are 0 or NaN.
__device__ inline float largest_of_warp(float x) {
  const float magnitude = fabsf(x);
  const unsigned bits = magnitude > 0.0f ? __float_as_uint(magnitude) : 0;  // ordered as the floats are
  const unsigned most = __reduce_max_sync(kAllLanes, bits);
  const float largest = __shfl_sync(kAllLanes, x, __ffs(__ballot_sync(kAllLanes, bits == most)) - 1);
  return most == 0 ? 0.0f : largest;
}

__device__ inline void store_block(BlockQ8_0* to, float x, int lane) {
  const float d = q8_0_scale(largest_of_warp(x));
  to->qs[lane] = static_cast<int8_t>(q8_0_level(x, inverse_or_zero(d)));
  if (lane == 0) to->d = scale_to_half(d);
}

__device__ inline void store_block(BlockQ4_0* to, float x, int lane) {
  const float d = q4_0_scale(largest_of_warp(x));
  const int level = q4_0_level(x, inverse_or_zero(d));
  const int upper = __shfl_down_sync(kAllLanes, level, QK / 2);
  if (lane < QK / 2) to->qs[lane] = static_cast<uint8_t>(level | upper << 4);
  if (lane == 0) to->d = scale_to_half(d);
}

__device__ inline void store_nibbles(uint8_t* qs, int level, int lane) {
  const int upper = __shfl_down_sync(kAllLanes, level, QK / 2);
  if (lane < QK / 2) qs[lane] = static_cast<uint8_t>((level & 15) | (upper & 15) << 4);
}
__device__ inline void store_pairs(uint8_t* qs, int level, int lane) {
  int byte = level;
  for (int part = 1; part < 4; ++part) byte |= __shfl_down_sync(kAllLanes, level, part * QK / 4) << 2 * part;
  if (lane < QK / 4) qs[lane] = static_cast<uint8_t>(byte);
}
__device__ inline void store_fifth_bits(uint8_t* qh, int level, int lane) {
  const unsigned bits = __ballot_sync(kAllLanes, level >> 4 & 1);
  if (lane < 4) qh[lane] = static_cast<uint8_t>(bits >> 8 * lane);
}

__device__ inline void store_block(BlockQ5_0* to, float x, int lane) {
  const float d = q5_0_scale(largest_of_warp(x));
  const int level = q5_0_level(x, inverse_or_zero(d));
  store_nibbles(to->qs, level, lane);
  store_fifth_bits(to->qh, level, lane);
  if (lane == 0) to->d = scale_to_half(d);
}

// The first of the least elements, with its sign; NaN where the first element is.
__device__ inline float least_of_warp(float x) {
  const float first = __shfl_sync(kAllLanes, x, 0);
  float least = x == x ? x : first;
  for (int step = kWarp / 2; step > 0; step /= 2)
    least = fminf(least, __shfl_xor_sync(kAllLanes, least, step));
  const unsigned found = __ballot_sync(kAllLanes, x == least);
  const float value = __shfl_sync(kAllLanes, x, found == 0 ? 0 : __ffs(found) - 1);
  return first == first ? value : first;
}

// Stores scale and minimum of Q4_1, Q5_1 and BlockKivi2 and returns the level.
template <class Block>
__device__ inline int store_affine(Block* to, float x, int max, int lane) {
  const float low = least_of_warp(x), high = -least_of_warp(-x);
  const float d = affine_scale(low, high, max);
  if (lane == 0) {
    to->d = scale_to_half(d);
    to->m = scale_to_half(low);
  }
  return affine_level(x, low, inverse_or_zero(d), max);
}
__device__ inline void store_block(BlockQ4_1* to, float x, int lane) {
  store_nibbles(to->qs, store_affine(to, x, 15, lane), lane);
}
__device__ inline void store_block(BlockQ5_1* to, float x, int lane) {
  const int level = store_affine(to, x, 31, lane);
  store_nibbles(to->qs, level, lane);
  store_fifth_bits(to->qh, level, lane);
}
__device__ inline void store_block(BlockKivi2* to, float x, int lane) {
  store_pairs(to->qs, store_affine(to, x, 3, lane), lane);
}

__device__ inline void store_block(BlockIQ4_NL* to, float x, int lane) {
  const Iq4Terms terms = iq4_terms(x, mul_rn(x, inverse_or_zero(largest_of_warp(x))));
  Iq4Terms sum{0.0f, 0.0f};
  for (int i = 0; i < kWarp; ++i) {  // in the host's order
    sum.xl = add_rn(sum.xl, __shfl_sync(kAllLanes, terms.xl, i));
    sum.ll = add_rn(sum.ll, __shfl_sync(kAllLanes, terms.ll, i));
  }
  const fp16_t d = scale_to_half(sum.ll > 0.0f ? sum.xl / sum.ll : 0.0f);
  store_nibbles(to->qs, iq4_nearest(mul_rn(x, inverse_or_zero(half_to_float(d)))), lane);
  if (lane == 0) to->d = d;
}

// A slot of the cache, and a head.
struct RowTarget {
  int64_t slot, head, n_head_kv, block_size;
};

// All lanes of a warp store row `row` (n_tokens * n_head_kv of them).
__device__ inline void store_row(const Pool& pool, int64_t row, RowTarget at) {
  const float* from = pool.from + row * pool.head_dim;
  if (pool.open_of)
    at.slot += (pool.open_of[at.slot / at.block_size] - at.slot / at.block_size) * at.block_size;
  std::byte* to = pool.to + kv_row(at.slot, at.head, at.n_head_kv, at.block_size) * pool.row_bytes;
  const int lane = threadIdx.x % kWarp;
  for (int first = 0; first < pool.head_dim; first += kWarp) {
    const int i = first + lane;
    const bool inside = i < pool.head_dim;  // always, for quantized rows
    const float x = inside ? from[i] : 0.0f;
    switch (pool.dtype) {
      case DType::Q8_0: store_block(reinterpret_cast<BlockQ8_0*>(to) + first / QK, x, lane); break;
      case DType::Q4_0: store_block(reinterpret_cast<BlockQ4_0*>(to) + first / QK, x, lane); break;
      case DType::Q4_1: store_block(reinterpret_cast<BlockQ4_1*>(to) + first / QK, x, lane); break;
      case DType::Q5_0: store_block(reinterpret_cast<BlockQ5_0*>(to) + first / QK, x, lane); break;
      case DType::Q5_1: store_block(reinterpret_cast<BlockQ5_1*>(to) + first / QK, x, lane); break;
      case DType::IQ4_NL: store_block(reinterpret_cast<BlockIQ4_NL*>(to) + first / QK, x, lane); break;
      case DType::F16:
        if (inside) reinterpret_cast<fp16_t*>(to)[i] = float_to_half(x);
        break;
      case DType::BF16:
        if (inside) reinterpret_cast<bf16_t*>(to)[i] = float_to_bfloat(x);
        break;
      default:
        if (inside) reinterpret_cast<float*>(to)[i] = x;
    }
  }
}

}  // namespace tandem::cuda
