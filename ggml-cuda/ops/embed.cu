// embed: gathers rows of the token table as floats. A block a token. Reads n rows of the table, writes n * d floats.
#include "ggml-cuda/ops/rows.cuh"

namespace tandem::cuda {
namespace {

__global__ void embed_plain(const int32_t* ids, PlainValues table, float* x, int64_t n_cols, float scale) {
  const int64_t from = ids[blockIdx.x] * n_cols, to = blockIdx.x * n_cols;
  for (int64_t i = threadIdx.x; i < n_cols; i += blockDim.x) x[to + i] = table[from + i] * scale;
}

class EmbedStep final : public Step {
 public:
  EmbedStep(const CompileContext& context, const Node& node)
      : ids_(context.address<const int32_t>(node.inputs[0])),
        table_(plain_values(context, node.inputs[1])),
        x_(context.address<float>(node.output)),
        n_cols_(context.tensor(node.output).n_cols),
        scale_(std::get<EmbedOp>(node.op).scale) {}

  void launch(const LaunchContext& context) const override {
    embed_plain<<<static_cast<unsigned>(context.shape.n_tokens), 256, 0, context.stream>>>(ids_, table_, x_, n_cols_,
                                                                                           scale_);
    check_launch("embed_plain");
  }

 private:
  const int32_t* ids_;  // [n_tokens]
  PlainValues table_;   // [n_vocab, n_cols]
  float* x_;            // [n_tokens, n_cols]
  int64_t n_cols_;
  float scale_;
};

}  // namespace

std::string why_not_embed(const Graph& graph, const Node& node) { return why_not_plain(graph, node.inputs[1], "embed"); }

StepPtr compile_embed(const CompileContext& context, const Node& node) {
  return std::make_unique<EmbedStep>(context, node);
}

}  // namespace tandem::cuda
