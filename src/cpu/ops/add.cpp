// add: y = a + b. Reads 2 * n * c floats, writes n * c.
#include "cpu/ops/rows.h"

namespace tandem::cpu {
namespace {

class AddStep final : public Step {
 public:
  AddStep(const CompileContext& context, const Node& node)
      : kernel_(context.kernels.rows.add),
        shape_(context.tensor(node.output)),
        a_(context.address<const float>(node.inputs[0])),
        b_(context.address<const float>(node.inputs[1])),
        y_(context.address<float>(node.output)) {}

  void run(Worker& worker, const RunContext& context) const override {
    const int64_t n_cols = shape_.n_cols;
    for_each_row(worker, row_count(shape_, context.shape), n_cols, [&](int64_t row) {
      kernel_(a_ + row * n_cols, b_ + row * n_cols, y_ + row * n_cols, n_cols);
    });
  }

 private:
  decltype(RowKernels::add) kernel_;
  const Tensor& shape_;
  const float* a_;  // [n, n_cols]
  const float* b_;  // [n, n_cols]
  float* y_;        // [n, n_cols]
};

}  // namespace

StepPtr compile_add(const CompileContext& context, const Node& node) {
  return std::make_unique<AddStep>(context, node);
}

}  // namespace tandem::cpu
