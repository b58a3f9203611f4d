// moe_route: chooses each token's experts and their weights. A few hundred scores per token: plain code.
#include <bit>

#include "cpu/ops/rows.h"
#include "device/expert_choice.h"

namespace tandem::cpu {
namespace {

class CompiledMoeRoute final : public CompiledOp {
 public:
  CompiledMoeRoute(const CompileContext& context, const Node& node, const MoeRouteOp& op)
      : op_(op),
        logits_(context.address(op.logits)),
        bias_(context.address(op.selection_bias)),
        expert_scale_(context.address(op.expert_scale)),
        route_(context.address(node.output)),
        extent_(context.tensor(node.output).extent) {
    scratch_bytes = ExpertChoice::room_bytes(op_);
  }

  void run(Worker& worker, const RunContext& context) const override {
    const int64_t n = row_count(extent_, 1, context.shape);
    for_each_row(worker, n, 64 * op_.n_expert, [&](int64_t token) { route(token, context.scratch); });
  }

 private:
  void route(int64_t token, std::byte* scratch) const {
    ExpertChoice choice(op_, scratch);
    const int32_t* order = choice.choose(logits_ + token * op_.n_expert, bias_, op_.n_used).data();
    float* ids = route_ + token * 2 * op_.n_used;
    float* weights = ids + op_.n_used;
    float sum = 0.0f;
    for (int64_t i = 0; i < op_.n_used; ++i) {
      weights[i] = choice.scores()[order[i]];
      sum += weights[i];
    }
    const float factor = op_.normalize ? op_.scale / sum : op_.scale;
    for (int64_t i = 0; i < op_.n_used; ++i) {
      weights[i] *= factor * (expert_scale_ ? expert_scale_[order[i]] : 1.0f);
      ids[i] = std::bit_cast<float>(static_cast<int32_t>(op_.id_here(order[i])));
    }
  }

  MoeRouteOp op_;
  const float* logits_;        // [n, n_expert]
  const float* bias_;          // [n_expert] or null
  const float* expert_scale_;  // [n_expert] or null
  float* route_;               // [n, 2 * n_used]
  Extent extent_;
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const MoeRouteOp& op) {
  return std::make_unique<CompiledMoeRoute>(context, node, op);
}

}  // namespace tandem::cpu
