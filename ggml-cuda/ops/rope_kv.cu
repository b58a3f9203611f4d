// Fuses rope of the queries, rope of the keys and kv_write, which follow each other in most layers, into one
// launch. For every token, some blocks rotate eight heads of queries each, some rotate eight heads of keys
// and then store them, some store eight heads of values; one warp stores a row. Reads n * (H + 2 Hkv) *
// head_dim floats, writes back the rotated ones, and the cache.
#include "ggml-cuda/ops/kv_store.cuh"
#include "ggml-cuda/ops/rotation.cuh"

namespace tandem::cuda {
namespace {

struct RopeKvCall {
  float* q;                  // [n_tokens, n_head * head_dim]
  float* k;                  // [n_tokens, n_head_kv * head_dim], what pools[0] stores
  Pool pools[2];             // keys, values
  const int32_t* positions;  // [n_tokens]
  const int32_t* slots;      // [n_tokens]
  int n_head, n_head_kv, head_dim, n_pairs, block_size;
  int q_parts, kv_parts;  // blocks a token for the queries; for the keys, and for the values
  RopeTable table;
};

template <RopeStyle kStyle>
__global__ void __launch_bounds__(kRotationThreads) rope_kv(const __grid_constant__ RopeKvCall call) {
  __shared__ float2 rotation[kMaxPairs];
  let_next_begin();
  const int64_t token = blockIdx.x;
  const int part = blockIdx.y;
  const bool queries = part < call.q_parts, values = part >= call.q_parts + call.kv_parts;
  if (!values) compute_rotations(call.table, call.positions[token], call.n_pairs, rotation);
  wait_for_previous();

  const int first = (queries ? part : (part - call.q_parts) % call.kv_parts) * kHeadsPerBlock;
  const int n_head = queries ? call.n_head : call.n_head_kv;
  const int n_here = min(kHeadsPerBlock, n_head - first);
  if (!values) {
    float* heads = (queries ? call.q : call.k) + (token * n_head + first) * call.head_dim;
    rotate_heads<kStyle>(heads, n_here, call.head_dim, call.n_pairs, rotation);
  }
  if (queries) return;
  __syncthreads();  // the rotated keys are in memory
  const int head = first + static_cast<int>(threadIdx.x / kWarp);
  if (head >= first + n_here) return;
  store_row(call.pools[values], token * n_head + head,
            kv_row(call.slots[token], head, n_head, call.block_size));
}

class CompiledRopeKv final : public CompiledOp {
 public:
  CompiledRopeKv(const CompileContext& context, const KvLayer& kv, const RopeOp& q, const RopeOp& k,
                 const KvWriteOp& write)
      : style_(q.style) {
    TANDEM_CHECK(k.n_head == kv.n_head_kv && q.head_dim == kv.head_dim_k);
    TANDEM_CHECK(context.tensor(write.v).n_cols == kv.n_head_kv * kv.head_dim_v);
    call_.q = context.address<float>(q.x);
    call_.k = context.address<float>(k.x);
    call_.pools[0] = make_pool(call_.k, kv.k, kv.k_dtype, kv.head_dim_k);
    call_.pools[1] = make_pool(context.address<const float>(write.v), kv.v, kv.v_dtype, kv.head_dim_v);
    call_.positions = context.address<const int32_t>(q.positions);
    call_.slots = context.address<const int32_t>(write.slots);
    call_.n_head = static_cast<int>(q.n_head);
    call_.n_head_kv = static_cast<int>(kv.n_head_kv);
    call_.head_dim = static_cast<int>(q.head_dim);
    call_.n_pairs = static_cast<int>(q.n_rot / 2);
    call_.block_size = static_cast<int>(kv.block_size);
    call_.q_parts = static_cast<int>(blocks_of(q.n_head, kHeadsPerBlock));
    call_.kv_parts = static_cast<int>(blocks_of(kv.n_head_kv, kHeadsPerBlock));
    call_.table = rope_table(context, q);
  }

  void launch(const LaunchContext& context) const override {
    const dim3 grid(static_cast<unsigned>(context.shape.n_tokens),
                    static_cast<unsigned>(call_.q_parts + 2 * call_.kv_parts));
    launch_overlapping(style_ == RopeStyle::pair ? rope_kv<RopeStyle::pair> : rope_kv<RopeStyle::half>, grid,
                       kRotationThreads, 0, context.stream, call_);
  }

 private:
  RopeStyle style_;
  RopeKvCall call_{};
};

// Whether two rotations are the same except for the number of heads.
bool same_but_heads(const RopeOp& a, const RopeOp& b) {
  RopeParams with_heads = a;
  with_heads.n_head = b.n_head;
  return with_heads == b && a.positions == b.positions && a.freq_factors == b.freq_factors;
}

}  // namespace

Lowered<CompiledOpPtr> compile_rope_kv(const CompileContext& context, std::span<const int32_t> nodes) {
  if (nodes.size() < 3) return {};
  const Node &keys = context.node(nodes[1]), &writer = context.node(nodes[2]);
  const auto* q = std::get_if<RopeOp>(&context.node(nodes[0]).op);
  const auto* k = std::get_if<RopeOp>(&keys.op);
  const auto* write = std::get_if<KvWriteOp>(&writer.op);
  if (!q || !k || !write || write->k != keys.output || !same_but_heads(*q, *k)) return {};
  if (q->first != 0 || write->v == kNoTensor) return {};
  const KvLayer& kv = context.segment.kv[writer.layer];
  return {std::make_unique<CompiledRopeKv>(context, kv, *q, *k, *write), 3};
}

}  // namespace tandem::cuda
