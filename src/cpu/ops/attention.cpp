// attention: every token against the cached keys and values of its sequence (cache_attention.h).
#include "cpu/ops/cache_attention.h"

namespace tandem::cpu {
namespace {

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

 private:
  CacheAttention attention_;
  AttentionTensors tensors_;  // of the whole step
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const AttentionOp& op) {
  return std::make_unique<CompiledAttention>(context, node, op);
}

}  // namespace tandem::cpu
