// hadamard: rotates runs of columns in place. One warp for each run, or for 32 columns of shorter ones. Reads and writes
// n * c floats.
#include "ggml-cuda/ops/hadamard.cuh"

namespace tandem::cuda {
namespace {

constexpr int kWarps = 4;

__global__ void __launch_bounds__(kWarps* kWarp)
    rotate_runs(float* x, int64_t n_steps, int n_cols, Hadamard h) {
  let_next_begin();
  wait_for_previous();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (index >= n_steps) return;
  const int step = hadamard_step(h.width), n_row_steps = (n_cols + step - 1) / step;
  const int64_t row = index / n_row_steps;
  const int first = static_cast<int>(index % n_row_steps) * step;
  hadamard_row(x + row * n_cols + first, min(step, n_cols - first), h);
}

class CompiledHadamard final : public CompiledOp {
 public:
  CompiledHadamard(const CompileContext& context, const Node& node, const HadamardOp& op)
      : shape_(context.tensor(node.output)), x_(context.address<float>(op.x)), h_(make_hadamard(op.width)) {}

  void launch(const LaunchContext& context) const override {
    const int64_t n_rows = row_count(shape_, context.shape);
    const int64_t n_steps = n_rows * blocks_of(shape_.n_cols, hadamard_step(h_.width));
    if (n_steps == 0) return;
    launch_overlapping(rotate_runs, blocks_of(n_steps, kWarps), kWarps * kWarp, 0, context.stream, x_,
                       n_steps, static_cast<int>(shape_.n_cols), h_);
  }

 private:
  const Tensor& shape_;
  float* x_;  // [n, c]
  Hadamard h_;
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const HadamardOp& op) {
  return std::make_unique<CompiledHadamard>(context, node, op);
}

}  // namespace tandem::cuda
