// softcap: y = cap * tanh(x / cap). Reads and writes n * c floats.
#include "cpu/ops/rows.h"

namespace tandem::cpu {
namespace {

class SoftcapStep final : public Step {
 public:
  SoftcapStep(const CompileContext& context, const Node& node)
      : kernel_(context.kernels.rows.softcap),
        cap_(std::get<SoftcapOp>(node.op).cap),
        shape_(context.tensor(node.output)),
        x_(context.address<const float>(node.inputs[0])),
        y_(context.address<float>(node.output)) {}

  void run(Worker& worker, const RunContext& context) const override {
    const int64_t n_cols = shape_.n_cols;
    for_each_row(worker, row_count(shape_, context.shape), n_cols,
                 [&](int64_t row) { kernel_(x_ + row * n_cols, cap_, y_ + row * n_cols, n_cols); });
  }

 private:
  decltype(RowKernels::softcap) kernel_;
  float cap_;
  const Tensor& shape_;
  const float* x_;  // [n, n_cols]
  float* y_;        // [n, n_cols]
};

}  // namespace

StepPtr compile_softcap(const CompileContext& context, const Node& node) {
  return std::make_unique<SoftcapStep>(context, node);
}

}  // namespace tandem::cpu
