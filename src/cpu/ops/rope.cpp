// rope: rotates pairs of columns of every head in place. The angle of a pair is position * frequency,
// whatever the scaling method, so everything but the position is settled when the step is compiled. A token's
// cosines and sines are computed once (n_rot / 2 of each, in a worker's scratch) and used for all its heads.
#include <cmath>
#include <numbers>

#include "base/checked.h"
#include "cpu/ops/rows.h"

namespace tandem::cpu {
namespace {

// The pair index (as a real number) whose wavelength makes `turns` full turns within the original context.
double pair_of_turns(const RopeOp& op, double turns) {
  const double n_ctx = static_cast<double>(op.n_ctx_orig);
  return static_cast<double>(op.n_rot) * std::log(n_ctx / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(static_cast<double>(op.freq_base)));
}

// How much pair i keeps of its unscaled frequency: 1 for pairs that turn fast, 0 for slow ones, linear in
// between (YaRN, arXiv:2309.00071, section 3.2, with the ramp over pair indices that its authors' code and
// GGUF models use).
double unscaled_share(const RopeOp& op, int64_t i) {
  if (op.ext_factor == 0.0f) return 0.0;
  const double low = std::max(0.0, std::floor(pair_of_turns(op, op.beta_fast)));
  const double high = std::min(static_cast<double>(op.n_rot - 1), std::ceil(pair_of_turns(op, op.beta_slow)));
  const double ramp = (static_cast<double>(i) - low) / std::max(0.001, high - low);
  return (1.0 - std::clamp(ramp, 0.0, 1.0)) * op.ext_factor;
}

// Radians per position of every pair.
std::vector<double> frequencies(const RopeOp& op, const std::vector<float>& factors) {
  std::vector<double> frequency(static_cast<size_t>(op.n_rot / 2));
  for (int64_t i = 0; i < op.n_rot / 2; ++i) {
    const double unscaled = std::pow(static_cast<double>(op.freq_base),
                                     -2.0 * static_cast<double>(i) / static_cast<double>(op.n_rot)) /
                            (factors.empty() ? 1.0 : factors[static_cast<size_t>(i)]);
    const double share = unscaled_share(op, i);
    frequency[static_cast<size_t>(i)] = unscaled * (share + (1.0 - share) * op.freq_scale);
  }
  return frequency;
}

// YaRN sharpens attention by growing q and k with the logarithm of the stretch.
float magnitude(const RopeOp& op) {
  if (op.ext_factor == 0.0f) return op.attn_factor;
  return static_cast<float>(op.attn_factor * (1.0 + 0.1 * std::log(1.0 / op.freq_scale)));
}

class RopeStep final : public Step {
 public:
  RopeStep(const CompileContext& context, const Node& node)
      : op_(std::get<RopeOp>(node.op)),
        rows_(context.kernels.rows),
        rotate_(op_.style == RopeStyle::pair ? rows_.rope_pair : rows_.rope_half),
        x_(context.address<float>(node.inputs[0])),
        positions_(context.address<const int32_t>(node.inputs[1])),
        frequency_(frequencies(op_, weight_floats(context, node.inputs[2]))),
        magnitude_(magnitude(op_)) {
    scratch_bytes = align_up(2 * frequency_.size() * sizeof(float), 64);
  }

  void run(Worker& worker, const RunContext& context) const override {
    const int64_t n_pairs = static_cast<int64_t>(frequency_.size());
    float* cos = reinterpret_cast<float*>(context.scratch);
    float* sin = cos + n_pairs;
    // A pair of cosine and sine costs about as much as rotating 16 elements.
    const int64_t cost = op_.n_head * op_.n_rot + 16 * n_pairs;
    for_each_row(worker, context.shape.n_tokens, cost, [&](int64_t token) {
      rows_.rotations(frequency_.data(), positions_[token], magnitude_, cos, sin, n_pairs);
      float* x = x_ + token * op_.n_head * op_.head_dim;
      for (int64_t head = 0; head < op_.n_head; ++head) rotate_(x + head * op_.head_dim, cos, sin, op_.n_rot);
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

StepPtr compile_rope(const CompileContext& context, const Node& node) {
  return std::make_unique<RopeStep>(context, node);
}

}  // namespace tandem::cpu
