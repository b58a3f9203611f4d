// attention: every token against the cached keys and values of its sequence (cache_attention.h), or some of them
// (sparse_attention.h).
#include "cpu/ops/cache_attention.h"
#include "cpu/ops/sparse_attention.h"

namespace tandem::cpu {
namespace {

template <class Attention>
class CompiledAttention final : public CompiledOp {
 public:
  CompiledAttention(const CompileContext& context, const Node& node, const AttentionOp& op)
      : attention_(context, context.segment.kv[node.layer], op, context.graph().shape.max_tokens),
        tensors_{0, context.address<const float>(op.q), context.address<const int32_t>(op.positions),
                 context.address<const int32_t>(op.sequences), context.address<float>(node.output)} {
    shared_bytes = attention_.shared_bytes();
    scratch_bytes = attention_.scratch_bytes();
  }

  void run(Worker& worker, const RunContext& context) const override {
    AttentionTensors tensors = tensors_;
    tensors.n_tokens = context.shape.n_tokens;
    attention_.run(worker, tensors, context.shared, context.scratch);
  }

  int64_t cache_bytes_read(const RunContext& context) const override {
    if constexpr (std::is_same_v<Attention, SparseAttention>) return attention_.bytes_read(context.shared);
    return 0;
  }

 private:
  Attention attention_;
  AttentionTensors tensors_;  // of the whole step
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const AttentionOp& op) {
  if (SparseAttention::applies(context.segment.kv[node.layer], op))
    return std::make_unique<CompiledAttention<SparseAttention>>(context, node, op);
  return std::make_unique<CompiledAttention<CacheAttention>>(context, node, op);
}

}  // namespace tandem::cpu
