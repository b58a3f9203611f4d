// embed: gathers rows of the token table as floats. Reads n rows of the table, writes n * d floats.
#include "cpu/ops/rows.h"

namespace tandem::cpu {
namespace {

class CompiledEmbed final : public CompiledOp {
 public:
  CompiledEmbed(const CompileContext& context, const Node& node, const EmbedOp& op)
      : rows_(context.kernels.rows),
        dtype_(context.tensor(op.table).dtype),
        ids_(context.address<const int32_t>(op.ids)),
        table_(context.address<const std::byte>(op.table)),
        x_(context.address<float>(node.output)),
        n_cols_(context.tensor(node.output).n_cols),
        row_bytes_(row_bytes(dtype_, n_cols_)),
        scale_(op.scale) {}

  void run(Worker& worker, const RunContext& context) const override {
    for_each_row(worker, context.shape.n_tokens, n_cols_, [&](int64_t row) {
      float* to = x_ + row * n_cols_;
      rows_.dequantize(dtype_, table_ + static_cast<size_t>(ids_[row]) * row_bytes_, to, n_cols_);
      if (scale_ != 1.0f) rows_.scale(to, scale_, to, n_cols_);
    });
  }

 private:
  const RowKernels& rows_;
  DType dtype_;
  const int32_t* ids_;      // [n_tokens]
  const std::byte* table_;  // [n_vocab, n_cols]
  float* x_;                // [n_tokens, n_cols]
  int64_t n_cols_;
  size_t row_bytes_;
  float scale_;
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const EmbedOp& op) {
  return std::make_unique<CompiledEmbed>(context, node, op);
}

}  // namespace tandem::cpu
