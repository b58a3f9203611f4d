// merge: combines the attention over the two parts of a split cache. Reads 2 n rows of H * (hd + 1) floats.
#include "ggml-cuda/ops/rows.cuh"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 128;

// The grid's x is the row, its y the head.
__global__ void __launch_bounds__(kThreads)
    merge_parts(const float* a, const float* b, float* y, int n_head, int head_dim) {
  let_next_begin();
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  const int64_t in = row * n_head * (head_dim + 1);
  const float log_a = a[in + n_head * head_dim + head], log_b = b[in + n_head * head_dim + head];
  const float most = fmaxf(log_a, log_b);
  const bool none = log_a == -INFINITY && log_b == -INFINITY;  // NaN is not hidden
  const float left = none ? 0.0f : expf(log_a - most), right = none ? 0.0f : expf(log_b - most);
  const float inverse = none ? 0.0f : 1.0f / (left + right);
  for (int i = static_cast<int>(threadIdx.x); i < head_dim; i += kThreads) {
    const int64_t at = in + head * head_dim + i;
    y[(row * n_head + head) * head_dim + i] = (left * a[at] + right * b[at]) * inverse;
  }
}

class CompiledMerge final : public CompiledOp {
 public:
  CompiledMerge(const CompileContext& context, const Node& node, const MergeOp& op)
      : op_(op),
        shape_(context.tensor(node.output)),
        a_(context.address<const float>(op.a)),
        b_(context.address<const float>(op.b)),
        y_(context.address<float>(node.output)) {}

  void launch(const LaunchContext& context) const override {
    const int64_t n = row_count(shape_, context.shape);
    if (n == 0) return;
    const dim3 grid(static_cast<unsigned>(n), static_cast<unsigned>(op_.n_head));
    launch_overlapping(merge_parts, grid, kThreads, 0, context.stream, a_, b_, y_,
                       static_cast<int>(op_.n_head), static_cast<int>(op_.head_dim_v));
  }

 private:
  MergeOp op_;
  const Tensor& shape_;
  const float* a_;  // [n, H * hd + H]
  const float* b_;  // [n, H * hd + H]
  float* y_;        // [n, H * hd]
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const MergeOp& op) {
  return std::make_unique<CompiledMerge>(context, node, op);
}

}  // namespace tandem::cuda
