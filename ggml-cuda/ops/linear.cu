// linear: one or more products that read the same input (q, k and v), computed together. The input is encoded
// once; up to eight tokens take one launch for all weights, whatever their dtypes.
#include "ggml-cuda/chain.h"
#include "ggml-cuda/products.cuh"

namespace tandem::cuda {
namespace {

std::vector<DType> dtypes_of(const std::vector<MatvecTarget>& targets) {
  std::vector<DType> dtypes;
  for (const MatvecTarget& t : targets) dtypes.push_back(t.w.dtype);
  return dtypes;
}

std::vector<DeviceWeight> weights_of(const std::vector<MatvecTarget>& targets) {
  std::vector<DeviceWeight> weights;
  for (const MatvecTarget& t : targets) weights.push_back(t.w);
  return weights;
}

class CompiledLinear final : public CompiledOp {
 public:
  CompiledLinear(const CompileContext& context, TensorId x_id, std::vector<MatvecTarget> targets,
                 const Tensor& x, ScratchLayout scratch = {})
      : extent_(x.extent),
        fixed_rows_(x.n_rows),
        x_(context.address(x_id)),
        targets_(std::move(targets)),
        encodings_(x.n_cols, x.n_rows, dtypes_of(targets_), scratch),
        large_(context, x.n_cols, x.n_rows, weights_of(targets_), LargeProducts::Use::products, scratch),
        reader_(encodings_.reader(x_id)),
        part_{ChainProducts{x_id, &reader_.bytes, targets_, MatvecMode::linear, Activation::silu, x_}} {
    scratch_bytes = scratch.n_bytes();
    large_.ask_for_narrow(reader_.bytes, x.n_rows);
    reader_.n_reads = static_cast<int64_t>(targets_.size());
  }

  BytesReader* bytes_reader() override { return &reader_; }
  const ChainPart* chain_part() const override { return extent_ == Extent::fixed ? nullptr : &part_; }

  void launch(const LaunchContext& context) const override {
    const int64_t n = row_count(extent_, fixed_rows_, context.shape);
    if (n == 0) return;
    if (n > kMaxMatvecTokens) {
      const LargeProducts::Input input = large_.prepare(encodings_, x_, n, context, reader_.bytes);
      return large_.multiply(targets_, input, context);
    }
    MatvecArgs args;
    args.input = encodings_.encode(x_, n, reader_.bytes, context);
    args.n = static_cast<int>(n);
    for (size_t first = 0; first < targets_.size(); first += kMaxMatvecWeights) {
      args.n_targets = static_cast<int>(std::min<size_t>(kMaxMatvecWeights, targets_.size() - first));
      std::copy_n(targets_.begin() + static_cast<ptrdiff_t>(first), args.n_targets, args.targets);
      launch_matvec(args, large_.gpu(), context.stream);
    }
  }

 private:
  Extent extent_;
  int64_t fixed_rows_;
  const float* x_;  // [n, k]
  std::vector<MatvecTarget> targets_;
  InputEncodings encodings_;
  LargeProducts large_;
  BytesReader reader_;
  ChainPart part_;
};

}  // namespace

std::string why_not(const Graph& graph, const LinearOp& op) {
  const std::string why = why_not_weight(graph, op.weight);
  return why.empty() ? why_not_bias(graph, op.bias) : why;
}

CompiledOpPtr compile_linear(const CompileContext& context, std::span<const int32_t> nodes) {
  const TensorId x_id = std::get<LinearOp>(context.node(nodes.front()).op).x;
  const Tensor& x = context.tensor(x_id);
  std::vector<MatvecTarget> targets;
  for (int32_t index : nodes) {
    const Node& node = context.node(index);
    const auto& op = std::get<LinearOp>(node.op);
    TANDEM_CHECK(op.x == x_id);
    MatvecTarget t;
    t.w = device_weight(context, op.weight);
    t.bias = context.address(op.bias);
    t.residual = context.address(op.residual);
    t.y = context.address(node.output);
    TANDEM_CHECK(t.w.k == x.n_cols);
    targets.push_back(t);
  }
  return std::make_unique<CompiledLinear>(context, x_id, std::move(targets), x);
}

}  // namespace tandem::cuda
