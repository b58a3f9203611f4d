// columns: takes some columns of every run of columns. Reads and writes n * runs * width floats.
#include <cstring>

#include "cpu/ops/rows.h"

namespace tandem::cpu {
namespace {

class CompiledColumns final : public CompiledOp {
 public:
  CompiledColumns(const CompileContext& context, const Node& node, const ColumnsOp& op)
      : op_(op),
        shape_(context.tensor(node.output)),
        n_in_(context.tensor(op.x).n_cols),
        x_(context.address<const float>(op.x)),
        y_(context.address<float>(node.output)) {}

  void run(Worker& worker, const RunContext& context) const override {
    const auto n_bytes = static_cast<size_t>(op_.width) * sizeof(float);
    for_each_row(worker, row_count(shape_, context.shape), shape_.n_cols, [&](int64_t row) {
      const float* from = x_ + row * n_in_ + op_.first;
      float* to = y_ + row * shape_.n_cols;
      for (int64_t run = 0; run < n_in_ / op_.period; ++run) {
        std::memcpy(to + run * op_.width, from + run * op_.period, n_bytes);
      }
    });
  }

 private:
  ColumnsOp op_;
  const Tensor& shape_;
  int64_t n_in_;
  const float* x_;  // [n, n_in]
  float* y_;        // [n, n_in / period * width]
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const ColumnsOp& op) {
  return std::make_unique<CompiledColumns>(context, node, op);
}

}  // namespace tandem::cpu
