// add: y = a + factor * sigmoid(gate) * b. Reads 2 * n * c floats, writes n * c.
#include "ggml-cuda/ops/rows.cuh"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;

struct Add {
  float factor;
  __device__ float operator()(float a, float b) const { return fmaf(b, factor, a); }
};

// The grid's x is the row, so that its gate is read once a thread.
__global__ void __launch_bounds__(kThreads)
    add_gated(Add add, const float* a, const float* b, const float* gate, float* y, int n_cols) {
  let_next_begin();
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (column >= n_cols) return;
  add.factor /= 1.0f + expf(-gate[row]);
  y[row * n_cols + column] = add(a[row * n_cols + column], b[row * n_cols + column]);
}

class CompiledAdd final : public CompiledOp {
 public:
  CompiledAdd(const CompileContext& context, const Node& node, const AddOp& op)
      : add_{op.factor},
        shape_(context.tensor(node.output)),
        a_(context.address<const float>(op.a)),
        b_(context.address<const float>(op.b)),
        gate_(context.address<const float>(op.gate)),
        gated_(op.gate != kNoTensor),
        y_(context.address<float>(node.output)) {}

  void launch(const LaunchContext& context) const override {
    const int64_t n = row_count(shape_, context.shape);
    if (!gated_) return launch_map(context, add_, a_, b_, y_, n * shape_.n_cols);
    if (n == 0) return;
    const dim3 grid(static_cast<unsigned>(n), blocks_of(shape_.n_cols, kThreads));
    launch_overlapping(add_gated, grid, kThreads, 0, context.stream, add_, a_, b_, gate_, y_,
                       static_cast<int>(shape_.n_cols));
  }

 private:
  Add add_;
  const Tensor& shape_;
  const float* a_;     // [n, n_cols]
  const float* b_;     // [n, n_cols]
  const float* gate_;  // [n, 1]
  bool gated_;
  float* y_;  // [n, n_cols]
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const AddOp& op) {
  return std::make_unique<CompiledAdd>(context, node, op);
}

}  // namespace tandem::cuda
