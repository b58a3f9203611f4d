// norm: normalizes each group of columns of each row. Reads and writes n * c floats.
#include "cpu/ops/rows.h"

namespace tandem::cpu {
namespace {

class CompiledNorm final : public CompiledOp {
 public:
  CompiledNorm(const CompileContext& context, const Node& node, const NormOp& op)
      : op_(op),
        kernel_(op_.kind == NormKind::rms ? context.kernels.rows.rms_norm : context.kernels.rows.layer_norm),
        shape_(context.tensor(node.output)),
        weight_of_each_(context.tensor(op.weight).n_rows > 1),
        x_(context.address<const float>(op.x)),
        weight_(context, op.weight),
        bias_(context, op.bias),
        y_(context.address<float>(node.output)) {}

  void run(Worker& worker, const RunContext& context) const override {
    const int64_t n_cols = shape_.n_cols;
    for_each_row(worker, row_count(shape_, context.shape), n_cols, [&](int64_t row) {
      for (int64_t i = 0; i < n_cols; i += op_.group) {
        kernel_(x_ + row * n_cols + i, weight_.data() + (weight_of_each_ ? i : 0), bias_.data(), op_.eps,
                y_ + row * n_cols + i, op_.group);
      }
    });
  }

 private:
  NormOp op_;
  decltype(RowKernels::rms_norm) kernel_;
  const Tensor& shape_;
  bool weight_of_each_;         // group of a row
  const float* x_;              // [n, n_cols]
  VectorWeight weight_, bias_;  // [group]; the weight perhaps [n_cols / group, group]
  float* y_;                    // [n, n_cols]
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const NormOp& op) {
  return std::make_unique<CompiledNorm>(context, node, op);
}

}  // namespace tandem::cpu
