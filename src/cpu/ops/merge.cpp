// merge: combines the attention over the two parts of a split cache. Reads 2 n rows of H * (hd + 1) floats.
#include <algorithm>
#include <cmath>

#include "cpu/ops/rows.h"

namespace tandem::cpu {
namespace {

class CompiledMerge final : public CompiledOp {
 public:
  CompiledMerge(const CompileContext& context, const Node& node, const MergeOp& op)
      : op_(op),
        add_(context.kernels.rows.add),
        scale_(context.kernels.rows.scale),
        shape_(context.tensor(node.output)),
        a_(context.address<const float>(op.a)),
        b_(context.address<const float>(op.b)),
        y_(context.address<float>(node.output)) {}

  void run(Worker& worker, const RunContext& context) const override {
    const int64_t hd = op_.head_dim_v, n_in = op_.n_head * (hd + 1);
    for_each_row(worker, row_count(shape_, context.shape), shape_.n_cols, [&](int64_t row) {
      const float *a = a_ + row * n_in, *b = b_ + row * n_in;
      for (int64_t h = 0; h < op_.n_head; ++h) {
        const auto [left, right] = weights(a[op_.n_head * hd + h], b[op_.n_head * hd + h]);
        float* y = y_ + (row * op_.n_head + h) * hd;
        scale_(a + h * hd, left, y, hd);
        add_(y, b + h * hd, right, y, hd);
      }
    });
  }

 private:
  struct Weights {
    float left, right;
  };
  // e^a and e^b, each divided by their sum; both 0 where neither part saw a position.
  static Weights weights(float a, float b) {
    const auto nothing = [](float x) { return std::isinf(x) && x < 0; };
    if (nothing(a) && nothing(b)) return {0.0f, 0.0f};
    const float most = std::max(a, b);
    const float left = std::exp(a - most), right = std::exp(b - most);
    return {left / (left + right), right / (left + right)};
  }

  MergeOp op_;
  decltype(RowKernels::add) add_;
  decltype(RowKernels::scale) scale_;
  const Tensor& shape_;
  const float* a_;  // [n, H * hd + H]
  const float* b_;  // [n, H * hd + H]
  float* y_;        // [n, H * hd]
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const MergeOp& op) {
  return std::make_unique<CompiledMerge>(context, node, op);
}

}  // namespace tandem::cpu
