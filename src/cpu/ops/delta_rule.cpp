// delta_rule: the gated delta rule of a recurrent layer. The columns of a head's state do not depend on each
// other, so a worker takes a tile of columns of one head and one sequence, small enough for the first cache, and
// goes through all tokens with it, in chunks whose q and k it normalizes first.
// Floors: the states read and written once, 2 * Hv * dk * dv floats of each sequence, over the bandwidth; 7 * n * Hv *
// dk * dv operations token by token, 6.25 in blocks of four tokens, over the peak. Measured on a core of Sapphire Rapids
// (tests/bench/recurrent_bench.cpp): blocks reach 0.3 of the peak with AVX-512, twice the speed of single tokens; their
// products with one vector are bound by loads. A single token with 2 MiB of
// states takes 180 us, 23 GB/s: it reads them twice, the second time from the first cache.
#include <cmath>

#include "cpu/ops/recurrent.h"
#include "cpu/ops/rows.h"

namespace tandem::cpu {
namespace {

constexpr int64_t kDeltaChunk = 16;  // tokens

class CompiledDeltaRule final : public CompiledOp {
 public:
  CompiledDeltaRule(const CompileContext& context, const Node& node, const DeltaRuleOp& op)
      : op_(op),
        normalize_(context.kernels.rows.rms_norm),
        kernel_(context.kernels.rows.delta_rule),
        kv_(context.segment.kv[node.layer]),
        sequences_(context, op),
        qkv_(context.address<const float>(op.qkv)),
        beta_(context.address<const float>(op.beta)),
        alpha_(context.address<const float>(op.alpha)),
        decay_(context.address<const float>(op.decay)),
        dt_bias_(context.address<const float>(op.dt_bias)),
        y_(context.address<float>(node.output)) {
    TANDEM_CHECK(kv_.head_dim_v == op.n_head_v * op.head_dim_k * op.head_dim_v);
    // Division by the length is an RMS norm with a constant weight.
    const auto dk = static_cast<float>(op.head_dim_k);
    k_scale_.assign(static_cast<size_t>(op.head_dim_k), 1.0f / std::sqrt(dk));
    q_scale_.assign(static_cast<size_t>(op.head_dim_k), 1.0f / dk);
    scratch_bytes = static_cast<size_t>(2 * kDeltaChunk * (op.head_dim_k + 1)) * sizeof(float);
  }

  void run(Worker& worker, const RunContext& context) const override {
    const int64_t n_tokens = context.shape.n_tokens;
    const int64_t n_tiles = (op_.head_dim_v + kStateTileColumns - 1) / kStateTileColumns;
    const int64_t n_of_sequence = op_.n_head_v * n_tiles;
    worker.for_each(sequences_.count(n_tokens) * n_of_sequence, [&](int64_t item) {
      update(sequences_.at(item / n_of_sequence, n_tokens), item % n_of_sequence / n_tiles,
             item % n_tiles * kStateTileColumns, reinterpret_cast<float*>(context.scratch));
    });
  }

 private:
  void update(const SequenceTokens& s, int64_t head, int64_t first, float* scratch) const {
    const int64_t dk = op_.head_dim_k, dv = op_.head_dim_v, n_qkv = op_.n_qkv();
    DeltaRuleTile tile{};
    tile.n_cols = std::min(kStateTileColumns, dv - first);
    tile.head_dim_k = dk;
    tile.v_stride = n_qkv;
    tile.y_stride = op_.n_head_v * dv;
    begin_state(kv_, s, {head * dk * dv + first, dk, tile.n_cols, dv}, tile);
    float *q = scratch, *k = q + kDeltaChunk * dk, *decay = k + kDeltaChunk * dk, *beta = decay + kDeltaChunk;
    tile.q = q;
    tile.k = k;
    tile.decay = decay;
    tile.beta = beta;
    const int64_t key_head = op_.key_head(head);
    for (int64_t at = 0; at < s.n; at += kDeltaChunk) {
      tile.n_tokens = std::min(kDeltaChunk, s.n - at);
      const int64_t token = s.first + at;
      for (int64_t i = 0; i < tile.n_tokens; ++i) {
        const float* row = qkv_ + (token + i) * n_qkv + key_head * dk;
        normalize_(row, q_scale_.data(), nullptr, kDeltaRuleEps / static_cast<float>(dk), q + i * dk, dk);
        normalize_(row + op_.n_head_k * dk, k_scale_.data(), nullptr, kDeltaRuleEps / static_cast<float>(dk),
                   k + i * dk, dk);
        const int64_t gate = (token + i) * op_.n_head_v + head;
        decay[i] = std::exp(decay_[head] * softplus(alpha_[gate] + dt_bias_[head]));
        beta[i] = 1.0f / (1.0f + std::exp(-beta_[gate]));
      }
      tile.v = qkv_ + token * n_qkv + 2 * op_.n_head_k * dk + head * dv + first;
      tile.y = y_ + token * tile.y_stride + head * dv + first;
      kernel_(tile);
      tile.old = tile.state;
    }
  }

  DeltaRuleOp op_;
  decltype(RowKernels::rms_norm) normalize_;
  decltype(RowKernels::delta_rule) kernel_;
  KvLayer kv_;  // of a state slot: [n_head_v, head_dim_k, head_dim_v]
  StepSequences sequences_;
  std::vector<float> q_scale_, k_scale_;  // [head_dim_k]
  const float* qkv_;                      // [n_tokens, n_qkv]
  const float *beta_, *alpha_;            // [n_tokens, n_head_v]
  const float *decay_, *dt_bias_;         // [n_head_v]
  float* y_;                              // [n_tokens, n_head_v * head_dim_v]
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const DeltaRuleOp& op) {
  return std::make_unique<CompiledDeltaRule>(context, node, op);
}

}  // namespace tandem::cpu
