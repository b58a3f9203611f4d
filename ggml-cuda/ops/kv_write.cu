// kv_write: stores every token's keys and values into its slot, converted to the cache's dtypes. A warp stores one row
// (a token's keys or values of one head), 32 elements at a time: coalesced floats in, one quantized block or 64 to 128
// contiguous bytes out. Reads n * Hkv * (hd_k + hd_v) floats, writes as many elements of the cache.
#include "ggml-cuda/ops/kv_rows.h"
#include "ggml-cuda/ops/rows.cuh"
#include "gguf/blocks.h"

namespace tandem::cuda {
namespace {

struct Pool {
  const float* from;  // [n_tokens, n_head_kv * head_dim]
  std::byte* to;      // rows of row_bytes
  DType dtype;
  int head_dim;
  int64_t row_bytes;
};

struct KvWriteCall {
  Pool pools[2];         // keys, values
  const int32_t* slots;  // [n_tokens]
  int64_t n_rows;        // n_tokens * n_head_kv, of each pool
  int n_head_kv, block_size;
};

// Of 32 elements, one a lane, the first of largest magnitude; 0 when none is finite or all are 0.
__device__ float largest_of_warp(float x) {
  const float magnitude = fabsf(x);
  const unsigned bits = magnitude > 0.0f ? __float_as_uint(magnitude) : 0;  // ordered as the floats are; NaN is none
  const unsigned most = __reduce_max_sync(kAllLanes, bits);
  const float largest = __shfl_sync(kAllLanes, x, __ffs(__ballot_sync(kAllLanes, bits == most)) - 1);
  return most == 0 ? 0.0f : largest;
}

__device__ void store_q8_0(BlockQ8_0* to, float x, int lane) {
  const float d = q8_0_scale(largest_of_warp(x));
  to->qs[lane] = static_cast<int8_t>(q8_0_level(x, inverse_or_zero(d)));
  if (lane == 0) to->d = scale_to_half(d);
}

__device__ void store_q4_0(BlockQ4_0* to, float x, int lane) {
  const float d = q4_0_scale(largest_of_warp(x));
  const int level = q4_0_level(x, inverse_or_zero(d));
  const int upper = __shfl_down_sync(kAllLanes, level, QK / 2);
  if (lane < QK / 2) to->qs[lane] = static_cast<uint8_t>(level | upper << 4);
  if (lane == 0) to->d = scale_to_half(d);
}

__device__ void store_row(const Pool& pool, const float* from, std::byte* to) {
  const int lane = threadIdx.x % kWarp;
  for (int first = 0; first < pool.head_dim; first += kWarp) {
    const int i = first + lane;
    const bool inside = i < pool.head_dim;  // always, for quantized rows
    const float x = inside ? from[i] : 0.0f;
    switch (pool.dtype) {
      case DType::Q8_0: store_q8_0(reinterpret_cast<BlockQ8_0*>(to) + first / QK, x, lane); break;
      case DType::Q4_0: store_q4_0(reinterpret_cast<BlockQ4_0*>(to) + first / QK, x, lane); break;
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

__global__ void kv_write(const __grid_constant__ KvWriteCall call) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  if (row >= call.n_rows) return;
  const Pool& pool = call.pools[blockIdx.y];
  const int64_t token = row / call.n_head_kv, head = row % call.n_head_kv;
  const int64_t target = kv_row(call.slots[token], head, call.n_head_kv, call.block_size);
  store_row(pool, pool.from + row * pool.head_dim, pool.to + target * pool.row_bytes);
}

bool is_cached(DType dtype) {
  return dtype == DType::F32 || dtype == DType::F16 || dtype == DType::BF16 || dtype == DType::Q8_0 ||
         dtype == DType::Q4_0;
}

class KvWriteStep final : public Step {
 public:
  KvWriteStep(const CompileContext& context, const Node& node) {
    if (context.segment.kv.empty()) return;  // only scratch_bytes is asked for
    const KvLayer& kv = context.segment.kv[static_cast<size_t>(node.layer)];
    TANDEM_CHECK(context.tensor(node.inputs[0]).n_cols == kv.n_head_kv * kv.head_dim_k);
    TANDEM_CHECK(context.tensor(node.inputs[1]).n_cols == kv.n_head_kv * kv.head_dim_v);
    TANDEM_CHECK(is_cached(kv.k_dtype) && is_cached(kv.v_dtype));
    call_.pools[0] = pool(context.address<const float>(node.inputs[0]), kv.k, kv.k_dtype, kv.head_dim_k);
    call_.pools[1] = pool(context.address<const float>(node.inputs[1]), kv.v, kv.v_dtype, kv.head_dim_v);
    call_.slots = context.address<const int32_t>(node.inputs[2]);
    call_.n_head_kv = static_cast<int>(kv.n_head_kv);
    call_.block_size = static_cast<int>(kv.block_size);
  }

  void launch(const LaunchContext& context) const override {
    constexpr int kWarps = 4;
    KvWriteCall call = call_;
    call.n_rows = context.shape.n_tokens * call.n_head_kv;
    const dim3 grid(blocks_of(call.n_rows, kWarps), 2);
    kv_write<<<grid, kWarps * kWarp, 0, context.stream>>>(call);
    check_launch("kv_write");
  }

 private:
  static Pool pool(const float* from, std::byte* to, DType dtype, int64_t head_dim) {
    return {from, to, dtype, static_cast<int>(head_dim), static_cast<int64_t>(row_bytes(dtype, head_dim))};
  }

  KvWriteCall call_{};
};

}  // namespace

StepPtr compile_kv_write(const CompileContext& context, const Node& node) {
  return std::make_unique<KvWriteStep>(context, node);
}

}  // namespace tandem::cuda
