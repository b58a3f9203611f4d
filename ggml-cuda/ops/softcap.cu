// softcap: y = cap * tanh(x / cap). Reads and writes n * c floats.
#include "ggml-cuda/ops/rows.cuh"

namespace tandem::cuda {
namespace {

struct Softcap {
  float cap;
  __device__ float operator()(float x, float) const { return cap * tanhf(x / cap); }
};

class CompiledSoftcap final : public CompiledOp {
 public:
  CompiledSoftcap(const CompileContext& context, const Node& node, const SoftcapOp& op)
      : softcap_{op.cap},
        shape_(context.tensor(node.output)),
        x_(context.address<const float>(op.x)),
        y_(context.address<float>(node.output)) {}

  void launch(const LaunchContext& context) const override {
    launch_map(context, softcap_, x_, nullptr, y_, row_count(shape_, context.shape) * shape_.n_cols);
  }

 private:
  Softcap softcap_;
  const Tensor& shape_;
  const float* x_;  // [n, n_cols]
  float* y_;        // [n, n_cols]
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const SoftcapOp& op) {
  return std::make_unique<CompiledSoftcap>(context, node, op);
}

}  // namespace tandem::cuda
