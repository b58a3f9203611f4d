// kv_write: stores every token's keys and values into its slot, converted to the cache's dtypes. One warp per
// row. Reads n * Hkv * (hd_k + hd_v) floats, writes as many elements of the cache; keys only where they have the
// values too, and once more for each further set of keys.
#include "ggml-cuda/ops/kv_store.cuh"

namespace tandem::cuda {
namespace {

struct KvWriteCall {
  Pool pools[2];         // keys, values; the second is unused where values are in the keys
  const int32_t* slots;  // [n_tokens]
  int64_t n_tokens;
  int n_heads[2], block_size;  // of the pools
};

constexpr int kWarps = 4;  // of a block

__global__ void __launch_bounds__(kWarps* kWarp) kv_write(const __grid_constant__ KvWriteCall call) {
  let_next_begin();
  wait_for_previous();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  const int n_heads = call.n_heads[blockIdx.y];
  if (row >= call.n_tokens * n_heads) return;
  const int64_t token = row / n_heads, head = row % n_heads;
  store_row(call.pools[blockIdx.y], row, {call.slots[token], head, n_heads, call.block_size});
}

class CompiledKvWrite final : public CompiledOp {
 public:
  CompiledKvWrite(const CompileContext& context, const Node& node, const KvWriteOp& op) {
    const KvLayer& kv = context.segment.kv[node.layer];
    TANDEM_CHECK(context.tensor(op.k).n_cols == kv.n_head_k() * kv.head_dim_k);
    n_pools_ = op.v == kNoTensor ? 1 : 2;
    TANDEM_CHECK((n_pools_ == 2 ? context.tensor(op.v).n_cols : 0) == kv.n_head_kv * kv.head_dim_v);
    call_.pools[0] = key_pool(context.address<const float>(op.k), kv);
    call_.pools[1] = value_pool(context.address<const float>(op.v), kv);
    call_.slots = context.address<const int32_t>(op.slots);
    call_.n_heads[0] = static_cast<int>(kv.n_head_k());
    call_.n_heads[1] = static_cast<int>(kv.n_head_kv);
    call_.block_size = static_cast<int>(kv.block_size);
  }

  void launch(const LaunchContext& context) const override {
    KvWriteCall call = call_;
    call.n_tokens = context.shape.n_tokens;
    const int64_t n_rows = call.n_tokens * call.n_heads[0];  // no fewer than of values
    launch_overlapping(kv_write, dim3(blocks_of(n_rows, kWarps), n_pools_), kWarps * kWarp, 0, context.stream,
                       call);
  }

 private:
  KvWriteCall call_{};
  unsigned n_pools_ = 2;
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const KvWriteOp& op) {
  return std::make_unique<CompiledKvWrite>(context, node, op);
}

}  // namespace tandem::cuda
