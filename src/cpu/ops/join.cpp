// join: y = [a b] + residual. Reads n * (p + q) floats, twice as many with a residual, and writes n * (p +
// q).
#include <cstring>

#include "cpu/ops/rows.h"

namespace tandem::cpu {
namespace {

class CompiledJoin final : public CompiledOp {
 public:
  CompiledJoin(const CompileContext& context, const Node& node, const JoinOp& op)
      : add_(context.kernels.rows.add),
        shape_(context.tensor(node.output)),
        n_left_(context.tensor(op.a).n_cols),
        a_(context.address<const float>(op.a)),
        b_(context.address<const float>(op.b)),
        residual_(context.address<const float>(op.residual)),
        y_(context.address<float>(node.output)) {}

  void run(Worker& worker, const RunContext& context) const override {
    const int64_t n_cols = shape_.n_cols, n_right = n_cols - n_left_;
    for_each_row(worker, row_count(shape_, context.shape), n_cols, [&](int64_t row) {
      put(a_ + row * n_left_, row * n_cols, n_left_);
      put(b_ + row * n_right, row * n_cols + n_left_, n_right);
    });
  }

 private:
  void put(const float* from, int64_t at, int64_t n) const {
    if (residual_) return add_(residual_ + at, from, 1.0f, y_ + at, n);
    memcpy(y_ + at, from, static_cast<size_t>(n) * sizeof(float));
  }

  decltype(RowKernels::add) add_;
  const Tensor& shape_;
  int64_t n_left_;
  const float* a_;         // [n, n_left]
  const float* b_;         // [n, n_cols - n_left]
  const float* residual_;  // [n, n_cols] or null
  float* y_;               // [n, n_cols]
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const JoinOp& op) {
  return std::make_unique<CompiledJoin>(context, node, op);
}

}  // namespace tandem::cpu
