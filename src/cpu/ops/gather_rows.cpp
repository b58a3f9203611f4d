// gather_rows: selects the rows that need logits. Reads and writes n_outputs * c floats.
#include <cstring>

#include "cpu/ops/rows.h"

namespace tandem::cpu {
namespace {

class CompiledGatherRows final : public CompiledOp {
 public:
  CompiledGatherRows(const CompileContext& context, const Node& node, const GatherRowsOp& op)
      : n_cols_(context.tensor(node.output).n_cols),
        x_(context.address<const float>(op.x)),
        outputs_(context.address<const int32_t>(op.outputs)),
        y_(context.address<float>(node.output)) {}

  void run(Worker& worker, const RunContext& context) const override {
    for_each_row(worker, context.shape.n_outputs, n_cols_, [&](int64_t row) {
      std::memcpy(y_ + row * n_cols_, x_ + outputs_[row] * n_cols_,
                  static_cast<size_t>(n_cols_) * sizeof(float));
    });
  }

 private:
  int64_t n_cols_;
  const float* x_;          // [n_tokens, n_cols]
  const int32_t* outputs_;  // [n_outputs]
  float* y_;                // [n_outputs, n_cols]
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const GatherRowsOp& op) {
  return std::make_unique<CompiledGatherRows>(context, node, op);
}

}  // namespace tandem::cpu
