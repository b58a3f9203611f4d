// The kernel and the op of rope_kv.cuh.
#include "ggml-cuda/ops/rope_kv.cuh"

#include "device/overlap.h"
#include "ggml-cuda/chain.h"

namespace tandem::cuda {
namespace {

template <RopeStyle kStyle>
__global__ void __launch_bounds__(kRotationThreads)
    rope_kv(const __grid_constant__ RopeKvCall call, const __grid_constant__ RopeTable table) {
  __shared__ float2 rotation[kMaxPairs];
  let_next_begin();
  const int part = static_cast<int>(blockIdx.y);
  if (part < call.q_parts + call.kv_parts) compute_rotations(table, call.positions[blockIdx.x], call.n_pairs, rotation);
  wait_for_previous();
  rope_kv_part<kStyle>(call, blockIdx.x, part, rotation);
}

// What the fusion found.
struct RopeKvNodes {
  const NormOp *q_norm = nullptr, *k_norm = nullptr;
  const RopeOp *q = nullptr, *k = nullptr;
  const HadamardOp *q_hadamard = nullptr, *k_hadamard = nullptr, *v_hadamard = nullptr;
  const KvWriteOp* write = nullptr;
  int layer = -1;
  size_t n_nodes = 0;
  bool may_chain = false;  // the floats of keys and values are read by nothing behind it
};

class CompiledRopeKv final : public CompiledOp {
 public:
  CompiledRopeKv(const CompileContext& context, const RopeKvNodes& nodes) : style_(nodes.q->style) {
    const KvLayer& kv = context.segment.kv[nodes.layer];
    const RopeOp &q = *nodes.q, &k = *nodes.k;
    const KvWriteOp& write = *nodes.write;
    TANDEM_CHECK(k.n_head == kv.n_head_kv && q.head_dim == kv.head_dim_k);
    TANDEM_CHECK(context.tensor(write.v).n_cols == kv.n_head_kv * kv.head_dim_v);
    call_.q = context.address<float>(q.x);
    // Keys are normalized where they are: where the norm's result has its place, something may lie that queries' blocks still read.
    call_.kv[0] = context.address<float>(nodes.k_norm ? nodes.k_norm->x : k.x);
    call_.kv[1] = context.address<float>(write.v);
    call_.pools[0] = key_pool(call_.kv[0], kv);
    call_.pools[1] = value_pool(call_.kv[1], kv);
    call_.positions = context.address<const int32_t>(q.positions);
    call_.slots = context.address<const int32_t>(write.slots);
    call_.n_head = static_cast<int>(q.n_head);
    call_.n_head_kv = static_cast<int>(kv.n_head_kv);
    call_.head_dim = static_cast<int>(q.head_dim);
    call_.n_pairs = static_cast<int>(q.n_rot / 2);
    call_.block_size = static_cast<int>(kv.block_size);
    call_.q_parts = static_cast<int>(blocks_of(q.n_head, kHeadsPerBlock));
    call_.kv_parts = static_cast<int>(blocks_of(kv.n_head_kv, kHeadsPerBlock));
    const auto hadamard_of = [](const HadamardOp* op) { return make_hadamard(op ? op->width : 0); };
    call_.q_hadamard = hadamard_of(nodes.q_hadamard);
    call_.kv_hadamard[0] = hadamard_of(nodes.k_hadamard);
    call_.kv_hadamard[1] = hadamard_of(nodes.v_hadamard);
    if (nodes.q_norm) call_.norms[0] = head_norm(context, *nodes.q_norm);
    if (nodes.k_norm) call_.norms[1] = head_norm(context, *nodes.k_norm);
    table_ = rope_table(context, q);
    part_.work = ChainRope{&call_, &table_, style_};
    may_chain_ = nodes.may_chain;
  }

  const ChainPart* chain_part() const override { return may_chain_ ? &part_ : nullptr; }

  void launch(const LaunchContext& context) const override {
    const dim3 grid(static_cast<unsigned>(context.shape.n_tokens),
                    static_cast<unsigned>(call_.q_parts + 2 * call_.kv_parts));
    launch_overlapping(style_ == RopeStyle::pair ? rope_kv<RopeStyle::pair> : rope_kv<RopeStyle::half>, grid,
                       kRotationThreads, 0, context.stream, call_, table_);
  }

 private:
  static HeadNorm head_norm(const CompileContext& context, const NormOp& norm) {
    return {context.address<const float>(norm.x), plain_values(context, norm.weight),
            static_cast<int>(context.tensor(norm.weight).n_rows), norm.eps};
  }

  RopeStyle style_;
  RopeKvCall call_{};
  RopeTable table_{};
  ChainPart part_;
  bool may_chain_;
};

// Whether two rotations are the same except for the number of heads.
bool same_but_heads(const RopeOp& a, const RopeOp& b) {
  RopeParams with_heads = a;
  with_heads.n_head = b.n_head;
  return with_heads == b && a.positions == b.positions && a.freq_factors == b.freq_factors;
}

// The nodes at the front of `nodes`, as far as they are those of the fusion.
class Front {
 public:
  Front(const CompileContext& context, std::span<const int32_t> nodes) : context_(context), nodes_(nodes) {}

  // The next node, if it is one of this op and `accepts` it; else null.
  template <class AnyOp, class Accepts>
  const AnyOp* take(const Accepts& accepts) {
    if (n_ == nodes_.size()) return nullptr;
    const AnyOp* op = std::get_if<AnyOp>(&context_.node(nodes_[n_]).op);
    if (op && accepts(*op)) return ++n_, op;
    return nullptr;
  }
  size_t n_taken() const { return n_; }
  const Node& last() const { return context_.node(nodes_[n_ - 1]); }

 private:
  const CompileContext& context_;
  std::span<const int32_t> nodes_;
  size_t n_ = 0;
};

// Whether the memory of a tensor is read by other nodes than those of the fusion.
bool is_read_elsewhere(const CompileContext& context, TensorId tensor, std::span<const int32_t> fusion) {
  return count_reads(context, tensor) > count_reads(context, tensor, fusion);
}

// Whether keys may be normalized where they are, queries before all keys are read.
bool may_normalize(const CompileContext& context, const RopeKvNodes& found, std::span<const int32_t> fusion) {
  const TensorId keys = found.k_norm->x, values = found.write->v;
  return context.tensor(values).storage != context.tensor(keys).storage && !is_read_elsewhere(context, keys, fusion) &&
         !is_read_elsewhere(context, found.k->x, fusion) && !overlap(context, found.q->x, found.q_norm->x) &&
         !overlap(context, found.q->x, keys) && !overlap(context, found.q->x, values);
}

// n_nodes 0: it is another sequence.
RopeKvNodes find_nodes(const CompileContext& context, std::span<const int32_t> nodes) {
  Front front(context, nodes);
  RopeKvNodes found;
  // Of the tensor that the last node made, in place.
  const auto hadamard_of_last = [&]() {
    const TensorId last = front.last().output;
    return front.take<HadamardOp>([&](const HadamardOp& h) { return h.x == last; });
  };
  const auto head_norm = [&] {
    return front.take<NormOp>([&](const NormOp& norm) {
      return norm.kind == NormKind::rms && norm.bias == kNoTensor && norm.group % 4 == 0;
    });
  };
  found.q_norm = head_norm();
  const TensorId queries = found.q_norm ? front.last().output : kNoTensor;
  found.q = front.take<RopeOp>([&](const RopeOp& q) {
    return q.first == 0 && (!found.q_norm || (q.x == queries && q.head_dim == found.q_norm->group));
  });
  if (!found.q) return {};
  found.q_hadamard = hadamard_of_last();
  if (found.q_norm) found.k_norm = head_norm();
  if (found.q_norm && !found.k_norm) return {};
  const TensorId normed_keys = found.k_norm ? front.last().output : kNoTensor;
  found.k = front.take<RopeOp>([&](const RopeOp& k) {
    return same_but_heads(*found.q, k) && (!found.k_norm || (k.x == normed_keys && k.head_dim == found.k_norm->group));
  });
  if (!found.k) return {};
  found.k_hadamard = hadamard_of_last();
  const TensorId keys = front.last().output;
  found.v_hadamard = front.take<HadamardOp>([](const HadamardOp&) { return true; });
  const TensorId values = found.v_hadamard ? front.last().output : kNoTensor;
  found.write = front.take<KvWriteOp>([&](const KvWriteOp& write) {
    return write.k == keys && write.v != kNoTensor && (values == kNoTensor || write.v == values);
  });
  if (!found.write) return {};
  found.layer = front.last().layer;
  found.n_nodes = front.n_taken();
  const std::span<const int32_t> fusion = nodes.first(found.n_nodes);
  if (found.k_norm && !may_normalize(context, found, fusion)) return {};
  const KvLayer& kv = context.segment.kv[found.layer];
  const auto is_plain_pool = [](DType dtype) { return dtype == DType::F16 || dtype == DType::BF16 || dtype == DType::F32; };
  found.may_chain = !found.k_norm && !found.q_hadamard && !found.k_hadamard && !found.v_hadamard && is_plain_pool(kv.k_dtype) &&
                    is_plain_pool(kv.v_dtype) && found.q->head_dim % 2 == 0 && !is_read_elsewhere(context, keys, fusion) &&
                    !is_read_elsewhere(context, found.write->v, fusion);
  return found;
}

}  // namespace

Lowered<CompiledOpPtr> compile_rope_kv(const CompileContext& context, std::span<const int32_t> nodes) {
  const RopeKvNodes found = find_nodes(context, nodes);
  if (found.n_nodes == 0) return {};
  return {std::make_unique<CompiledRopeKv>(context, found), found.n_nodes};
}

}  // namespace tandem::cuda
