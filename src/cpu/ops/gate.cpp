// gate: x * act(gate). Reads 2 n * c floats and writes n * c.
#include "cpu/ops/rows.h"

namespace tandem::cpu {
namespace {

class CompiledGate final : public CompiledOp {
 public:
  CompiledGate(const CompileContext& context, const Node& node, const GateOp& op)
      : kind_(op.kind),
        kernel_(context.kernels.rows.gate),
        shape_(context.tensor(node.output)),
        x_(context.address<const float>(op.x)),
        gate_(context.address<const float>(op.gate)),
        y_(context.address<float>(node.output)) {}

  void run(Worker& worker, const RunContext& context) const override {
    const int64_t n = shape_.n_cols;
    for_each_row(worker, row_count(shape_, context.shape), n,
                 [&](int64_t row) { kernel_(kind_, x_ + row * n, gate_ + row * n, y_ + row * n, n); });
  }

 private:
  GateKind kind_;
  decltype(RowKernels::gate) kernel_;
  const Tensor& shape_;
  const float* x_;     // [n, c]
  const float* gate_;  // [n, c]
  float* y_;           // [n, c]
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const GateOp& op) {
  return std::make_unique<CompiledGate>(context, node, op);
}

}  // namespace tandem::cpu
