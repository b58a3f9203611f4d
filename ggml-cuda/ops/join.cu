// join: y = [a b] + residual. Reads n * (p + q) floats, twice as many with a residual, and writes n * (p +
// q).
#include "ggml-cuda/ops/rows.cuh"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;

// The grid's x is the row.
__global__ void __launch_bounds__(kThreads)
    join_rows(const float* a, const float* b, const float* residual, float* y, int n_left, int n_cols) {
  let_next_begin();
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (column >= n_cols) return;
  const float value =
      column < n_left ? a[row * n_left + column] : b[row * (n_cols - n_left) + column - n_left];
  const int64_t at = row * n_cols + column;
  y[at] = residual ? residual[at] + value : value;
}

class CompiledJoin final : public CompiledOp {
 public:
  CompiledJoin(const CompileContext& context, const Node& node, const JoinOp& op)
      : shape_(context.tensor(node.output)),
        n_left_(context.tensor(op.a).n_cols),
        a_(context.address<const float>(op.a)),
        b_(context.address<const float>(op.b)),
        residual_(context.address<const float>(op.residual)),
        y_(context.address<float>(node.output)) {}

  void launch(const LaunchContext& context) const override {
    const int64_t n = row_count(shape_, context.shape);
    if (n == 0) return;
    const dim3 grid(static_cast<unsigned>(n), blocks_of(shape_.n_cols, kThreads));
    launch_overlapping(join_rows, grid, kThreads, 0, context.stream, a_, b_, residual_, y_,
                       static_cast<int>(n_left_), static_cast<int>(shape_.n_cols));
  }

 private:
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

}  // namespace tandem::cuda
