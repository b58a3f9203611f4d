// columns: takes some columns of every run of columns. Reads and writes n * runs * width floats.
#include "ggml-cuda/ops/rows.cuh"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;

// One thread per element of the result, n_cols in each of its rows.
__global__ void __launch_bounds__(kThreads) take_columns(const float* x, float* y, int64_t n, int n_cols,
                                                         int n_in, int period, int first, int width) {
  let_next_begin();
  wait_for_previous();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  const int64_t row = i / n_cols;
  const int col = static_cast<int>(i % n_cols);
  y[i] = x[row * n_in + col / width * period + first + col % width];
}

class CompiledColumns final : public CompiledOp {
 public:
  CompiledColumns(const CompileContext& context, const Node& node, const ColumnsOp& op)
      : op_(op),
        shape_(context.tensor(node.output)),
        n_in_(context.tensor(op.x).n_cols),
        x_(context.address<const float>(op.x)),
        y_(context.address<float>(node.output)) {}

  void launch(const LaunchContext& context) const override {
    const int64_t n = row_count(shape_, context.shape) * shape_.n_cols;
    if (n == 0) return;
    launch_overlapping(take_columns, blocks_of(n, kThreads), kThreads, 0, context.stream, x_, y_, n,
                       static_cast<int>(shape_.n_cols), static_cast<int>(n_in_), static_cast<int>(op_.period),
                       static_cast<int>(op_.first), static_cast<int>(op_.width));
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

}  // namespace tandem::cuda
