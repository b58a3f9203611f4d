// add: y = a + b. Reads 2 * n * c floats, writes n * c.
#include "ggml-cuda/ops/rows.cuh"

namespace tandem::cuda {
namespace {

struct Add {
  __device__ float operator()(float a, float b) const { return a + b; }
};

class AddStep final : public Step {
 public:
  AddStep(const CompileContext& context, const Node& node)
      : shape_(context.tensor(node.output)),
        a_(context.address<const float>(node.inputs[0])),
        b_(context.address<const float>(node.inputs[1])),
        y_(context.address<float>(node.output)) {}

  void launch(const LaunchContext& context) const override {
    launch_map(context, Add{}, a_, b_, y_, row_count(shape_, context.shape) * shape_.n_cols);
  }

 private:
  const Tensor& shape_;
  const float* a_;  // [n, n_cols]
  const float* b_;  // [n, n_cols]
  float* y_;        // [n, n_cols]
};

}  // namespace

StepPtr compile_add(const CompileContext& context, const Node& node) {
  return std::make_unique<AddStep>(context, node);
}

}  // namespace tandem::cuda
