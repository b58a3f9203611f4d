// glu: act(x Wgate^T) * (x Wup^T). Up to eight tokens take one launch that reads a row of both matrices at a
// time and stores only the combination; more take two products, and the second combines with the first's
// output.
#include "ggml-cuda/chain.h"
#include "ggml-cuda/products.cuh"

namespace tandem::cuda {
namespace {

class CompiledGlu final : public CompiledOp {
 public:
  CompiledGlu(const CompileContext& context, const Node& node, const GluOp& op, ScratchLayout scratch = {})
      : shape_(context.tensor(op.x)),
        x_(context.address(op.x)),
        activation_(op.activation),
        gate_(target(context, op.gate, op.gate_bias)),
        up_(target(context, op.up, op.up_bias)),
        encodings_(shape_.n_cols, shape_.n_rows, {gate_.w.dtype, up_.w.dtype}, scratch),
        large_(context, shape_.n_cols, shape_.n_rows, {gate_.w, up_.w}, LargeProducts::Use::gate_and_up,
               scratch),
        reader_(encodings_.reader(op.x)) {
    TANDEM_CHECK(gate_.w.m == up_.w.m && gate_.w.k == shape_.n_cols && up_.w.k == shape_.n_cols);
    gate_.y = context.address(node.output);
    if (!together()) up_at_ = scratch.take(sizeof(float) * static_cast<size_t>(kMaxMatvecTokens * up_.w.m));
    scratch_bytes = scratch.n_bytes();
    part_.work = ChainProducts{op.x, &reader_.bytes, {gate_, up_}, MatvecMode::glu, activation_, x_};
    if (together() && makes_matvec_bytes(gate_.w.m)) maker_.tensor = node.output;
    maker_.few = large_.few_of_gate(up_);
    maker_.n_reads = count_reads(context, node.output);
    large_.ask_for_narrow(reader_.bytes, shape_.n_rows);
  }

  BytesReader* bytes_reader() override { return &reader_; }
  BytesMaker* bytes_maker() override { return &maker_; }
  const ChainPart* chain_part() const override {
    return together() && shape_.extent != Extent::fixed ? &part_ : nullptr;
  }

  void launch(const LaunchContext& context) const override {
    const int64_t n = row_count(shape_, context.shape);
    if (n == 0) return;
    MatvecTarget up = up_;
    if (n > kMaxMatvecTokens) {
      const LargeProducts::Input input = large_.prepare(encodings_, x_, n, context, reader_.bytes);
      const HandedBytes& made = maker_.bytes;
      return large_.multiply_gated(
          activation_, gate_, up_, input, context,
          {made.narrow_at(context, n), made.narrow.value_or(NarrowForm{}), maker_.makes_floats(n)});
    }
    up.y = reinterpret_cast<float*>(context.scratch + up_at_);
    MatvecArgs args;
    args.targets[0] = gate_;
    args.targets[1] = up;
    args.n_targets = 2;
    args.input = encodings_.encode(x_, n, reader_.bytes, context);
    if (together()) args.made = maker_.bytes.made(context, n);
    args.n = static_cast<int>(n);
    args.activation = activation_;
    args.mode = together() ? MatvecMode::glu : MatvecMode::linear;
    launch_matvec(args, large_.gpu(), context.stream);
    if (!together()) combine_glu(activation_, gate_.y, up.y, gate_.y, n * gate_.w.m, context.stream);
  }

 private:
  bool together() const { return gate_.w.dtype == up_.w.dtype; }

  static MatvecTarget target(const CompileContext& context, TensorId weight, TensorId bias) {
    MatvecTarget t;
    t.w = device_weight(context, weight);
    t.bias = context.address(bias);
    return t;
  }

  const Tensor& shape_;
  const float* x_;  // [n, k]
  Activation activation_;
  MatvecTarget gate_, up_;
  InputEncodings encodings_;
  LargeProducts large_;
  BytesReader reader_;
  BytesMaker maker_;
  ChainPart part_;
  size_t up_at_ = 0;  // [n, m] floats, for up to eight tokens with matrices of different dtypes
};

}  // namespace

std::string why_not(const Graph& graph, const GluOp& op) {
  for (const TensorId weight : {op.gate, op.up}) {
    if (std::string why = why_not_weight(graph, weight); !why.empty()) return why;
  }
  for (const TensorId bias : {op.gate_bias, op.up_bias}) {
    if (std::string why = why_not_bias(graph, bias); !why.empty()) return why;
  }
  return "";
}

CompiledOpPtr compile(const CompileContext& context, const Node& node, const GluOp& op) {
  return std::make_unique<CompiledGlu>(context, node, op);
}

}  // namespace tandem::cuda
