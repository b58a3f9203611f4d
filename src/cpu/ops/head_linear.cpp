// head_linear: a product for each head, with a matrix of its own (head_products.h).
#include "cpu/ops/head_products.h"

namespace tandem::cpu {
namespace {

class CompiledHeadLinear final : public CompiledOp {
 public:
  CompiledHeadLinear(const CompileContext& context, const Node& node, const HeadLinearOp& op)
      : products_(context, op.weight, context.tensor(op.x).n_cols / context.tensor(op.weight).weight->n_mats,
                  context.tensor(op.x).n_rows),
        x_(context.address<const float>(op.x)),
        y_(context.address<float>(node.output)),
        extent_(context.tensor(op.x).extent),
        fixed_rows_(context.tensor(op.x).n_rows) {
    TANDEM_CHECK(context.tensor(node.output).n_cols == products_.weight().n_mats * products_.y_cols());
    scratch_bytes = products_.scratch_bytes();
  }

  void observe(const ProductObserver& observer, const RunContext& context) const override {
    const int64_t n = row_count(extent_, fixed_rows_, context.shape), x_cols = products_.x_cols();
    const Weight& weight = products_.weight();
    for (int64_t head = 0; head < weight.n_mats; ++head) {
      observer({weight, head, x_ + head * x_cols, nullptr, n, weight.n_mats * x_cols});
    }
  }

  void run(Worker& worker, const RunContext& context) const override {
    products_.run(worker, x_, y_, row_count(extent_, fixed_rows_, context.shape), context.scratch);
  }

 private:
  HeadProducts products_;
  const float* x_;  // [n, n_head * x_cols]
  float* y_;        // [n, n_head * y_cols]
  Extent extent_;
  int64_t fixed_rows_;
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const HeadLinearOp& op) {
  return std::make_unique<CompiledHeadLinear>(context, node, op);
}

}  // namespace tandem::cpu
