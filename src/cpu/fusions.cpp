#include "cpu/fusions.h"

#include <algorithm>

#include "cpu/ops/linear_group.h"
#include "device/overlap.h"

namespace tandem::cpu {
namespace {

using Lowering = Lowered<CompiledOpPtr>;

// Several ops on few rows: together they are too little for more than one worker.
class CompiledChain final : public CompiledOp {
 public:
  CompiledChain(std::vector<CompiledOpPtr> ops, int64_t elements_per_token)
      : ops_(std::move(ops)), elements_per_token_(elements_per_token) {
    for (const CompiledOpPtr& op : ops_) {
      shared_bytes = std::max(shared_bytes, op->shared_bytes);
      scratch_bytes = std::max(scratch_bytes, op->scratch_bytes);
    }
  }

  void run(Worker& worker, const RunContext& context) const override {
    constexpr int64_t kMaxElements = 32768;
    const bool is_small = context.shape.n_tokens * elements_per_token_ <= kMaxElements;
    if (!is_small) {
      for (const CompiledOpPtr& op : ops_) op->run(worker, context);
      return;
    }
    worker.for_each(1, [&](int64_t) {
      Worker alone = worker.alone();
      for (const CompiledOpPtr& op : ops_) op->run(alone, context);
    });
  }

 private:
  std::vector<CompiledOpPtr> ops_;
  int64_t elements_per_token_;
};

// Whether the op computes each token's row by itself, with little work on each element.
bool is_row_op(const Node& node) {
  return std::holds_alternative<NormOp>(node.op) || std::holds_alternative<RopeOp>(node.op) ||
         std::holds_alternative<KvWriteOp>(node.op) || std::holds_alternative<AddOp>(node.op) ||
         std::holds_alternative<ScaleOp>(node.op) || std::holds_alternative<GateOp>(node.op) ||
         std::holds_alternative<HadamardOp>(node.op);
}

// Of a token, read or written.
int64_t elements_of(const CompileContext& context, const Node& node) {
  int64_t n = 0;
  for (const TensorId id : inputs_of(node.op)) {
    const Tensor& t = context.tensor(id);
    if (t.role != Role::weight && t.extent == Extent::tokens) n += t.n_cols;
  }
  return n;
}

// Returns the nodes of products that follow the norm at the front and read what it makes; none if they cannot be computed
// together: workers read the norm's input, and for themselves make its output, while others write the products.
std::span<const int32_t> products_of_norm(const CompileContext& context, std::span<const int32_t> nodes) {
  const Node& first = context.node(nodes[0]);
  const auto* norm = std::get_if<NormOp>(&first.op);
  if (!norm || nodes.size() < 2 || overlap(context, norm->x, first.output)) return {};
  const Op& op = context.node(nodes[1]).op;
  const auto* glu = std::get_if<GluOp>(&op);
  const auto* linear = std::get_if<LinearOp>(&op);
  if (!(glu && glu->x == first.output) && !(linear && linear->x == first.output)) return {};
  const std::span<const int32_t> group = glu ? nodes.subspan(1, 1) : linear_group(context, nodes.subspan(1));
  for (const int32_t i : group) {
    if (overlap(context, norm->x, context.node(i).output)) return {};
    const auto* product = std::get_if<LinearOp>(&context.node(i).op);
    if (product && product->residual != kNoTensor && overlap(context, product->residual, first.output))
      return {};
  }
  return group;
}

Lowering norm_and_products(const CompileContext& context, std::span<const int32_t> nodes) {
  const std::span<const int32_t> group = products_of_norm(context, nodes);
  if (group.empty()) return {};
  const Node& first = context.node(nodes[0]);
  const Node& second = context.node(group[0]);
  NormRows norm(context, first, std::get<NormOp>(first.op));
  const auto* glu = std::get_if<GluOp>(&second.op);
  return {glu ? compile_glu(context, second, *glu, std::move(norm))
              : compile_linear(context, group, std::move(norm)),
          1 + group.size()};
}

// Consecutive row ops, without a norm that goes with products.
Lowering chain_of_row_ops(const CompileContext& context, std::span<const int32_t> nodes) {
  size_t n = 0;
  int64_t elements = 0;
  std::vector<CompiledOpPtr> ops;
  while (n < nodes.size() && is_row_op(context.node(nodes[n]))) {
    if (!products_of_norm(context, nodes.subspan(n)).empty()) break;
    Lowering next = lower_first<CompiledOpPtr>(context, nodes.subspan(n));
    elements += elements_of(context, context.node(nodes[n++]));
    ops.push_back(std::move(next.op));
  }
  if (n < 2) return {};
  return {std::make_unique<CompiledChain>(std::move(ops), elements), n};
}

}  // namespace

std::vector<CompiledOpPtr> compile_ops(const CompileContext& context) {
  return lower<CompiledOpPtr>(context, norm_and_products, chain_of_row_ops);
}

}  // namespace tandem::cpu
