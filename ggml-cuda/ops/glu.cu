// glu: act(x Wgate^T) * (x Wup^T). Up to eight tokens are one launch that reads a row of both matrices at a time and
// stores the combination only; more are two products, the second into scratch.
#include "ggml-cuda/products.cuh"

namespace tandem::cuda {
namespace {

class GluStep final : public Step {
 public:
  GluStep(const CompileContext& context, const Node& node, ScratchLayout scratch = {})
      : x_(context.tensor(node.inputs[0])),
        activation_(std::get<GluOp>(node.op).activation),
        gate_(target(context, node.inputs[1], node.inputs[3])),
        up_(target(context, node.inputs[2], node.inputs[4])),
        input_(context.address(node.inputs[0]), x_.n_cols, x_.n_rows, {gate_.w.dtype, up_.w.dtype}, scratch),
        large_(context, x_.n_rows, {gate_.w, up_.w}, scratch) {
    TANDEM_CHECK(gate_.w.m == up_.w.m && gate_.w.k == x_.n_cols && up_.w.k == x_.n_cols);
    gate_.y = context.address(node.output);
    up_at_ = scratch.take(static_cast<size_t>(x_.n_rows * up_.w.m) * sizeof(float));
    scratch_bytes = scratch.n_bytes();
  }

  void launch(const LaunchContext& context) const override {
    const int64_t n = row_count(x_, context.shape);
    if (n == 0) return;
    input_.prepare(n, context.scratch, context.stream);
    MatvecTarget up = up_;
    up.y = reinterpret_cast<float*>(context.scratch + up_at_);
    if (n > kMaxMatvecTokens) {
      large_.multiply(gate_, input_, n, context.scratch, context.stream);
      large_.multiply(up, input_, n, context.scratch, context.stream);
      return combine_glu(activation_, gate_.y, up.y, gate_.y, n * gate_.w.m, context.stream);
    }
    MatvecArgs args;
    args.targets[0] = gate_;
    args.targets[1] = up;
    args.n_targets = 2;
    args.input = input_.product_input(context.scratch);
    args.n = static_cast<int>(n);
    args.activation = activation_;
    const bool together = gate_.w.dtype == up_.w.dtype;
    args.mode = together ? MatvecMode::glu : MatvecMode::linear;
    launch_matvec(args, context.stream);
    if (!together) combine_glu(activation_, gate_.y, up.y, gate_.y, n * gate_.w.m, context.stream);
  }

 private:
  static MatvecTarget target(const CompileContext& context, TensorId weight, TensorId bias) {
    MatvecTarget t;
    t.w = device_weight(context, weight);
    t.bias = context.address(bias);
    return t;
  }

  const Tensor& x_;
  Activation activation_;
  MatvecTarget gate_, up_;
  StepInput input_;
  LargeProducts large_;
  size_t up_at_ = 0;  // [n, m] floats
};

}  // namespace

std::string why_not_glu(const Graph& graph, const Node& node) {
  for (int i : {1, 2}) {
    if (std::string why = why_not_weight(graph, node.inputs[i]); !why.empty()) return why;
  }
  for (int i : {3, 4}) {
    if (std::string why = why_not_bias(graph, node.inputs[i]); !why.empty()) return why;
  }
  return "";
}

StepPtr compile_glu(const CompileContext& context, const Node& node) {
  TANDEM_CHECK(node.inputs.size() == 5);
  return std::make_unique<GluStep>(context, node);
}

}  // namespace tandem::cuda
