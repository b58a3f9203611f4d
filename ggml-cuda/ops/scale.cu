// scale: y = factor * x. Reads and writes n * c floats.
#include "ggml-cuda/ops/rows.cuh"

namespace tandem::cuda {
namespace {

struct Scale {
  float factor;
  __device__ float operator()(float x, float) const { return factor * x; }
};

class CompiledScale final : public CompiledOp {
 public:
  CompiledScale(const CompileContext& context, const Node& node, const ScaleOp& op)
      : scale_{op.factor},
        shape_(context.tensor(node.output)),
        x_(context.address<const float>(op.x)),
        y_(context.address<float>(node.output)) {}

  void launch(const LaunchContext& context) const override {
    launch_map(context, scale_, x_, nullptr, y_, row_count(shape_, context.shape) * shape_.n_cols);
  }

 private:
  Scale scale_;
  const Tensor& shape_;
  const float* x_;  // [n, n_cols]
  float* y_;        // [n, n_cols]
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const ScaleOp& op) {
  return std::make_unique<CompiledScale>(context, node, op);
}

}  // namespace tandem::cuda
