// Encoding activations in kernels (quantize.h): a warp has 256 consecutive columns of a token, eight a lane.
#pragma once

#include "ggml-cuda/made_bytes.h"
#include "ggml-cuda/narrow.h"

namespace tandem::cuda {

inline constexpr int kLaneColumns = 8;

// The lane's columns x[0], ..., which other multiprocessors may have stored.
__device__ inline void load_columns(const float* x, float (&values)[kLaneColumns]) {
#pragma unroll
  for (int i = 0; i < kLaneColumns; i += 4) {
    const float4 v = __ldcg(reinterpret_cast<const float4*>(x + i));
    values[i] = v.x, values[i + 1] = v.y, values[i + 2] = v.z, values[i + 3] = v.w;
  }
}

// A 16-bit float; what is too large for F16 becomes its largest.
template <DType To>
__device__ inline uint16_t narrowed(float x) {
  if constexpr (To == DType::BF16) return float_to_bfloat(x);
  return float_to_half(x != x ? x : fminf(fmaxf(x, -65504.0f), 65504.0f));
}

// kCount neighbouring columns, 4 or 8, of a row of 16-bit floats; `at`, the first, is a multiple of kCount.
template <DType To, int kCount>
__device__ inline void store_narrow(ColumnOrder order, const float (&values)[kCount], uint16_t* row, int at) {
  static_assert(kCount == 4 || kCount == 8);
  uint32_t pairs[kCount / 2];
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i)
    pairs[i] = narrowed<To>(values[2 * i]) | static_cast<uint32_t>(narrowed<To>(values[2 * i + 1])) << 16;
  if (order == ColumnOrder::fragments) {  // first the pairs of even number
    auto* even = reinterpret_cast<uint32_t*>(row + place_of_pair(at));
    auto* odd = reinterpret_cast<uint32_t*>(row + place_of_pair(at + 2));
    if constexpr (kCount == 4) {
      *even = pairs[0], *odd = pairs[1];
    } else {
      *reinterpret_cast<uint2*>(even) = {pairs[0], pairs[2]};
      *reinterpret_cast<uint2*>(odd) = {pairs[1], pairs[3]};
    }
  } else if constexpr (kCount == 4) {
    *reinterpret_cast<uint2*>(row + at) = {pairs[0], pairs[1]};
  } else {
    *reinterpret_cast<uint4*>(row + at) = {pairs[0], pairs[1], pairs[2], pairs[3]};
  }
}

// All lanes call it; `inside` is the same for the lanes that share a scale. The lane's columns are `column` and the next.
template <Encoding E>
__device__ inline void encode_columns(const float (&values)[kLaneColumns], bool inside, int64_t token,
                                      int column, int k, std::byte* q, BlockMeta* meta) {
  uint32_t max_bits = 0;
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) max_bits = max(max_bits, __float_as_uint(values[i]) & 0x7fffffffu);
#pragma unroll
  for (int mask = 1; mask < (E == Encoding::by_32 ? 4 : 32); mask *= 2) {
    max_bits = max(max_bits, __shfl_xor_sync(0xffffffffu, max_bits, mask));
  }
  const BlockScaling scaling = block_scaling(max_bits);
  uint32_t words[2] = {};
  int sum = 0;
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) {
    const int value = quantize_value(values[i], scaling);
    words[i / 4] |= static_cast<uint32_t>(value & 0xff) << i % 4 * 8;
    sum += value;
  }
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);             // of this half of the block
  const int other = __shfl_xor_sync(0xffffffffu, sum, 2);  // of the other half
  if (!inside) return;
  const int n_blocks = k / kBlockColumns, block = column / kBlockColumns, at = column % kBlockColumns;
  *reinterpret_cast<uint2*>(q + activation_at(token, at / 16, block, n_blocks) + at % 16) = {words[0],
                                                                                             words[1]};
  if (at == 0) {
    meta[token * n_blocks + block] = {scaling.scale,
                                      {static_cast<int16_t>(sum), static_cast<int16_t>(other)}};
  }
}

// In every encoding that is wanted.
__device__ inline void encode_columns(const float (&values)[kLaneColumns], bool inside, int64_t token,
                                      int column, int k, const MadeBytes& made) {
  constexpr int k32 = static_cast<int>(Encoding::by_32), k256 = static_cast<int>(Encoding::by_256);
  if (made.q[k32])
    encode_columns<Encoding::by_32>(values, inside, token, column, k, made.q[k32], made.meta[k32]);
  if (made.q[k256])
    encode_columns<Encoding::by_256>(values, inside, token, column, k, made.q[k256], made.meta[k256]);
}

}  // namespace tandem::cuda
