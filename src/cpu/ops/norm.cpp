// norm: normalizes each group of columns of each row. Reads and writes n * c floats.
#include "cpu/ops/norm.h"

namespace tandem::cpu {

NormRows::NormRows(const CompileContext& context, const Node& node, const NormOp& op)
    : op_(op),
      kernel_(op_.kind == NormKind::rms ? context.kernels.rows.rms_norm : context.kernels.rows.layer_norm),
      shape_(context.tensor(node.output)),
      weight_of_each_(context.tensor(op.weight).n_rows > 1),
      x_(context.address<const float>(op.x)),
      weight_(context, op.weight),
      bias_(context, op.bias),
      y_(context.address<float>(node.output)) {}

void NormRows::normalize(int64_t row, float* to) const {
  for (int64_t i = 0; i < n_cols(); i += op_.group) {
    kernel_(x_ + row * n_cols() + i, weight_.data() + (weight_of_each_ ? i : 0), bias_.data(), op_.eps,
            to + i, op_.group);
  }
}

void NormRows::run(Worker& worker, int64_t n) const {
  for_each_row(worker, n, n_cols(), [&](int64_t row) { normalize(row, y_ + row * n_cols()); });
}

namespace {

class CompiledNorm final : public CompiledOp {
 public:
  CompiledNorm(const CompileContext& context, const Node& node, const NormOp& op)
      : shape_(context.tensor(node.output)), rows_(context, node, op) {}
  void run(Worker& worker, const RunContext& context) const override {
    rows_.run(worker, row_count(shape_, context.shape));
  }

 private:
  const Tensor& shape_;
  NormRows rows_;
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const NormOp& op) {
  return std::make_unique<CompiledNorm>(context, node, op);
}

}  // namespace tandem::cpu
