// scale: y = factor * x, and softcap: y = cap * tanh(x / cap). Read and write n * c floats.
#include "cpu/ops/rows.h"

namespace tandem::cpu {
namespace {

// Applies a kernel with one parameter to each row.
class CompiledMap final : public CompiledOp {
 public:
  using Kernel = void (*)(const float* x, float parameter, float* to, int64_t n);

  CompiledMap(const CompileContext& context, const Node& node, TensorId x, Kernel kernel, float parameter)
      : kernel_(kernel),
        parameter_(parameter),
        shape_(context.tensor(node.output)),
        x_(context.address<const float>(x)),
        y_(context.address<float>(node.output)) {}

  void run(Worker& worker, const RunContext& context) const override {
    const int64_t n_cols = shape_.n_cols;
    for_each_row(worker, row_count(shape_, context.shape), n_cols,
                 [&](int64_t row) { kernel_(x_ + row * n_cols, parameter_, y_ + row * n_cols, n_cols); });
  }

 private:
  Kernel kernel_;
  float parameter_;
  const Tensor& shape_;
  const float* x_;  // [n, n_cols]
  float* y_;        // [n, n_cols]
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const ScaleOp& op) {
  return std::make_unique<CompiledMap>(context, node, op.x, context.kernels.rows.scale, op.factor);
}

CompiledOpPtr compile(const CompileContext& context, const Node& node, const SoftcapOp& op) {
  return std::make_unique<CompiledMap>(context, node, op.x, context.kernels.rows.softcap, op.cap);
}

}  // namespace tandem::cpu
