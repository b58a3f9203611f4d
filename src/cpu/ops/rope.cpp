// rope: rotates pairs of columns of every head in place. The angle of a pair is position * frequency for
// every scaling method, so everything but the position is computed when the op is compiled. A token's cosines
// and sines are computed once (n_rot / 2 of each, in a worker's scratch) and used for all its heads.
#include "base/checked.h"
#include "cpu/ops/rows.h"
#include "graph/rope_frequencies.h"

namespace tandem::cpu {
namespace {

class CompiledRope final : public CompiledOp {
 public:
  CompiledRope(const CompileContext& context, const RopeOp& op)
      : op_(op),
        rows_(context.kernels.rows),
        rotate_(op_.style == RopeStyle::pair ? rows_.rope_pair : rows_.rope_half),
        x_(context.address<float>(op.x)),
        positions_(context.address<const int32_t>(op.positions)),
        frequency_(rope_frequencies(op_, weight_floats(context, op.freq_factors))),
        magnitude_(rope_magnitude(op_)) {
    scratch_bytes = align_up(2 * frequency_.size() * sizeof(float), 64);
  }

  void run(Worker& worker, const RunContext& context) const override {
    const int64_t n_pairs = static_cast<int64_t>(frequency_.size());
    float* cos = reinterpret_cast<float*>(context.scratch);
    float* sin = cos + n_pairs;
    // Computing a cosine and sine pair costs about as much as rotating 16 elements.
    const int64_t cost = op_.n_head * op_.n_rot + 16 * n_pairs;
    for_each_row(worker, context.shape.n_tokens, cost, [&](int64_t token) {
      const float magnitude = magnitude_ * rope_temperature(op_, positions_[token]);
      rows_.rotations(frequency_.data(), positions_[token], magnitude, cos, sin, n_pairs);
      float* x = x_ + token * op_.n_head * op_.head_dim;
      for (int64_t head = 0; head < op_.n_head; ++head)
        rotate_(x + head * op_.head_dim + op_.first, cos, sin, op_.n_rot);
    });
  }

 private:
  RopeOp op_;
  const RowKernels& rows_;
  decltype(RowKernels::rope_pair) rotate_;
  float* x_;                       // [n_tokens, n_head * head_dim]
  const int32_t* positions_;       // [n_tokens]
  std::vector<double> frequency_;  // [n_rot / 2]
  float magnitude_;
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node&, const RopeOp& op) {
  return std::make_unique<CompiledRope>(context, op);
}

}  // namespace tandem::cpu
