// gate: x * act(gate). Reads 2 n * c floats and writes n * c.
#include "ggml-cuda/ops/rows.cuh"
#include "ggml-cuda/products.h"

namespace tandem::cuda {
namespace {

struct Gate {
  GateKind kind;
  __device__ float operator()(float x, float gate) const {
    switch (kind) {
      case GateKind::sigmoid: return x / (1.0f + expf(-gate));
      case GateKind::silu: return x * activate(Activation::silu, gate);
      case GateKind::gelu_tanh: return x * activate(Activation::gelu_tanh, gate);
      case GateKind::product: return x * gate;
      case GateKind::relu: return x * (gate < 0.0f ? 0.0f : gate);
    }
    return x;
  }
};

class CompiledGate final : public CompiledOp {
 public:
  CompiledGate(const CompileContext& context, const Node& node, const GateOp& op)
      : gate_{op.kind},
        shape_(context.tensor(node.output)),
        x_(context.address<const float>(op.x)),
        gates_(context.address<const float>(op.gate)),
        y_(context.address<float>(node.output)) {}

  void launch(const LaunchContext& context) const override {
    launch_map(context, gate_, x_, gates_, y_, row_count(shape_, context.shape) * shape_.n_cols);
  }

 private:
  Gate gate_;
  const Tensor& shape_;
  const float* x_;      // [n, c]
  const float* gates_;  // [n, c]
  float* y_;            // [n, c]
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const GateOp& op) {
  return std::make_unique<CompiledGate>(context, node, op);
}

}  // namespace tandem::cuda
