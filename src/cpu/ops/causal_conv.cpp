// causal_conv: the short convolution of a recurrent layer, channel by channel. A worker takes a range of
// channels of one sequence and goes through its tokens. Reads and writes n * c floats.
#include <array>
#include <cstring>

#include "cpu/ops/recurrent.h"
#include "cpu/ops/rows.h"

namespace tandem::cpu {
namespace {

constexpr int64_t kMaxChannels = 256;  // of a range
constexpr int64_t kMaxKernel = 16;

class CompiledCausalConv final : public CompiledOp {
 public:
  CompiledCausalConv(const CompileContext& context, const Node& node, const CausalConvOp& op)
      : kernel_(context.kernels.rows.causal_conv),
        kv_(context.segment.kv[node.layer]),
        sequences_(context, op),
        activation_(op.activation),
        n_channels_(context.tensor(op.x).n_cols),
        width_(context.tensor(op.weight).n_cols),
        x_(context.address<const float>(op.x)),
        w_(context.address<const float>(op.weight)),
        bias_(context.address<const float>(op.bias)),
        y_(context.address<float>(node.output)) {
    TANDEM_CHECK(width_ <= kMaxKernel && kv_.head_dim_k == (width_ - 1) * n_channels_);
    scratch_bytes = static_cast<size_t>((width_ + 2) * kMaxChannels) * sizeof(float);
  }

  void run(Worker& worker, const RunContext& context) const override {
    const StepRange step{0, context.shape.n_tokens};
    if (step.end == 0) return;
    const int64_t n_ranges = (n_channels_ + kMaxChannels - 1) / kMaxChannels;
    worker.for_each(sequences_.count(step) * n_ranges, [&](int64_t item) {
      const int64_t first = item % n_ranges * kMaxChannels;
      convolve(sequences_.at(sequences_.first(step) + item / n_ranges, step), first,
               std::min(kMaxChannels, n_channels_ - first), reinterpret_cast<float*>(context.scratch));
    });
  }

 private:
  void convolve(const SequenceTokens& s, int64_t first, int64_t n, float* scratch) const {
    float *w = scratch, *zeros = scratch + (width_ + 1) * n;  // [width + 1, n], [n]
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < width_; ++j) w[j * n + i] = w_[(first + i) * width_ + j];
      w[width_ * n + i] = bias_ ? bias_[first + i] : 0.0f;
    }
    std::fill_n(zeros, n, 0.0f);
    const float* old = pool() + s.read * kv_.head_dim_k + first;
    // The row of token t of the sequence; those before its first token are in the state.
    const auto row = [&](int64_t t) {
      if (t >= 0) return x_ + (s.first + t) * n_channels_ + first;
      return s.is_start ? zeros : old + (width_ - 1 + t) * n_channels_;
    };
    std::array<const float*, kMaxKernel> rows;
    for (int64_t t = 0; t < s.n; ++t) {
      for (int64_t j = 0; j < width_; ++j) rows[static_cast<size_t>(j)] = row(t - (width_ - 1) + j);
      kernel_(rows.data(), w, width_, activation_, y_ + (s.first + t) * n_channels_ + first, n);
    }
    float* state = pool() + s.write * kv_.head_dim_k + first;
    for (int64_t j = 0; j < width_ - 1; ++j) {
      std::memcpy(state + j * n_channels_, row(s.n - (width_ - 1) + j),
                  static_cast<size_t>(n) * sizeof(float));
    }
  }

  float* pool() const { return reinterpret_cast<float*>(kv_.k); }

  decltype(RowKernels::causal_conv) kernel_;
  KvLayer kv_;  // of a state slot: [width - 1, n_channels]
  StepSequences sequences_;
  ConvActivation activation_;
  int64_t n_channels_, width_;
  const float* x_;     // [n_tokens, n_channels]
  const float* w_;     // [n_channels, width]
  const float* bias_;  // [n_channels] or null
  float* y_;           // [n_tokens, n_channels]
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const CausalConvOp& op) {
  return std::make_unique<CompiledCausalConv>(context, node, op);
}

}  // namespace tandem::cpu
