// add: y = a + factor * sigmoid(gate) * b. Reads 2 * n * c floats, writes n * c.
#include <cmath>

#include "cpu/ops/rows.h"

namespace tandem::cpu {
namespace {

class CompiledAdd final : public CompiledOp {
 public:
  CompiledAdd(const CompileContext& context, const Node& node, const AddOp& op)
      : factor_(op.factor),
        kernel_(context.kernels.rows.add),
        shape_(context.tensor(node.output)),
        a_(context.address<const float>(op.a)),
        b_(context.address<const float>(op.b)),
        gate_(context.address<const float>(op.gate)),
        y_(context.address<float>(node.output)) {}

  void run(Worker& worker, const RunContext& context) const override {
    const int64_t n_cols = shape_.n_cols;
    for_each_row(worker, row_count(shape_, context.shape), n_cols, [&](int64_t row) {
      const float factor = gate_ ? factor_ / (1.0f + std::exp(-gate_[row])) : factor_;
      kernel_(a_ + row * n_cols, b_ + row * n_cols, factor, y_ + row * n_cols, n_cols);
    });
  }

 private:
  float factor_;
  decltype(RowKernels::add) kernel_;
  const Tensor& shape_;
  const float* a_;     // [n, n_cols]
  const float* b_;     // [n, n_cols]
  const float* gate_;  // [n, 1] or null
  float* y_;           // [n, n_cols]
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const AddOp& op) {
  return std::make_unique<CompiledAdd>(context, node, op);
}

}  // namespace tandem::cpu
