// Closes blocks of a grouped cache (gguf/kivi.h): quantizes their F16 rows, bit for bit as the host does. A block of threads
// has one head's keys or values of one cache block. For keys, a warp takes 32 channels, each lane the tokens of one, which it
// reads twice; for values, a warp takes a token's row. Reads 64 * head_dim bytes of each head and half, and those of keys once
// more from the caches; writes the group.
#include <algorithm>

#include "ggml-cuda/close_groups.h"
#include "ggml-cuda/kivi_rows.h"
#include "ggml-cuda/ops/kv_store.cuh"

namespace tandem::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kMaxBlocks = 64;  // a launch

struct CloseCall {
  struct Side {
    const fp16_t* open;
    uint8_t* pool;
    DType dtype;  // F16: this side is not grouped
    int n_head, head_dim;
    int64_t group_bytes;
  };
  Side sides[2];  // keys, values
  OpenBlock blocks[kMaxBlocks];
};

// A warp's 32 channels of a group of keys.
__device__ void close_keys(const CloseCall::Side& side, const fp16_t* rows, uint8_t* group, int first,
                           int lane) {
  const int channel = first + lane, bits = kivi_bits(side.dtype), max = (1 << bits) - 1;
  float low = half_to_float(rows[channel]), high = low;
  for (int token = 1; token < kKiviGroup; ++token) {
    const float x = half_to_float(rows[token * side.head_dim + channel]);
    low = x < low ? x : low;
    high = x > high ? x : high;
  }
  const float d = affine_scale(low, high, max), inverse = inverse_or_zero(d);
  auto* scales = reinterpret_cast<fp16_t*>(group);
  scales[channel] = scale_to_half(d);
  scales[side.head_dim + channel] = scale_to_half(low);
  uint8_t* codes = group + group_scale_bytes(side.head_dim) + first / QK * code_bytes(bits);
  for (int token = 0; token < kKiviGroup; ++token, codes += token_code_bytes(bits, side.head_dim)) {
    const float x = half_to_float(rows[token * side.head_dim + channel]);
    const int level = affine_level(x, low, inverse, max);
    bits == 4 ? store_nibbles(codes, level, lane) : store_pairs(codes, level, lane);
  }
}

template <class Block>
__device__ void close_row(const fp16_t* row, uint8_t* to, int head_dim, int lane) {
  for (int first = 0; first < head_dim; first += QK)
    store_block(reinterpret_cast<Block*>(to) + first / QK, half_to_float(row[first + lane]), lane);
}

// Grid: x head, y block, z keys or values.
__global__ void __launch_bounds__(kWarps* kWarp) close_groups(const __grid_constant__ CloseCall call) {
  const CloseCall::Side& side = call.sides[blockIdx.z];
  if (!is_kivi(side.dtype) || static_cast<int>(blockIdx.x) >= side.n_head) return;
  const OpenBlock at = call.blocks[blockIdx.y];
  const int head = blockIdx.x, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t from = static_cast<int64_t>(at.place) * side.n_head + head;
  const fp16_t* rows = side.open + from * kKiviGroup * side.head_dim;
  uint8_t* group = side.pool + (static_cast<int64_t>(at.block) * side.n_head + head) * side.group_bytes;
  if (blockIdx.z == 0) {
    for (int first = kWarp * warp; first < side.head_dim; first += kWarp * kWarps)
      close_keys(side, rows, group, first, lane);
    return;
  }
  for (int token = warp; token < kKiviGroup; token += kWarps) {
    const fp16_t* row = rows + token * side.head_dim;
    uint8_t* to = group + token * (side.group_bytes / kKiviGroup);
    side.dtype == DType::KIVI4 ? close_row<BlockQ4_1>(row, to, side.head_dim, lane)
                               : close_row<BlockKivi2>(row, to, side.head_dim, lane);
  }
}

CloseCall::Side side_of(std::byte* open, std::byte* pool, DType dtype, int64_t n_head, int64_t head_dim) {
  return {reinterpret_cast<const fp16_t*>(open),
          reinterpret_cast<uint8_t*>(pool),
          dtype,
          static_cast<int>(n_head),
          static_cast<int>(head_dim),
          static_cast<int64_t>(row_bytes(dtype, head_dim)) * kKiviGroup};
}

}  // namespace

void launch_close_groups(const KvLayer& layer, std::span<const OpenBlock> blocks, cudaStream_t stream) {
  TANDEM_CHECK(layer.block_size == kKiviGroup);
  CloseCall call{{side_of(layer.k_open, layer.k, layer.k_dtype, layer.n_head_k(), layer.head_dim_k),
                  side_of(layer.v_open, layer.v, layer.v_dtype, layer.n_head_kv, layer.head_dim_v)},
                 {}};
  for (size_t first = 0; first < blocks.size(); first += kMaxBlocks) {
    const size_t n = std::min<size_t>(kMaxBlocks, blocks.size() - first);
    std::copy_n(blocks.begin() + static_cast<int64_t>(first), n, call.blocks);
    const dim3 grid(static_cast<unsigned>(layer.n_head_k()), static_cast<unsigned>(n),
                    2);  // no fewer than of values
    close_groups<<<grid, kWarps * kWarp, 0, stream>>>(call);
    check_launch("close_groups");
  }
}

}  // namespace tandem::cuda
