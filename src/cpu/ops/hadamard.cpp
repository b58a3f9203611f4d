// hadamard: rotates runs of columns in place. Reads and writes n * c floats, and adds log2(width) times as many.
#include "cpu/ops/rows.h"

namespace tandem::cpu {
namespace {

class CompiledHadamard final : public CompiledOp {
 public:
  CompiledHadamard(const CompileContext& context, const Node& node, const HadamardOp& op)
      : transform_(context.kernels.rows.hadamard),
        shape_(context.tensor(node.output)),
        width_(op.width),
        x_(context.address<float>(op.x)) {}

  void run(Worker& worker, const RunContext& context) const override {
    const int64_t n_cols = shape_.n_cols;
    for_each_row(worker, row_count(shape_, context.shape), 2 * n_cols,
                 [&](int64_t row) { transform_(x_ + row * n_cols, width_, n_cols); });
  }

 private:
  decltype(RowKernels::hadamard) transform_;
  const Tensor& shape_;
  int64_t width_;
  float* x_;  // [n, c]
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const HadamardOp& op) {
  return std::make_unique<CompiledHadamard>(context, node, op);
}

}  // namespace tandem::cpu
