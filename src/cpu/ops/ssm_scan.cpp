// ssm_scan: the state space of Mamba-2. As in delta_rule, a worker takes a tile of columns of one head's state and
// one sequence, small enough for the first cache, and goes through all tokens with it.
// Floors: the states read and written once, 2 * H * N * d floats of each sequence, over the bandwidth; 5 * n * H * N * d
// operations token by token, 4.25 in blocks of four tokens (cpu/simd/recurrent.h), over the peak. Measured as in
// delta_rule: blocks reach 0.33 of the peak with AVX-512, 0.35 with AVX2.
#include <cmath>

#include "cpu/ops/recurrent.h"
#include "cpu/ops/rows.h"

namespace tandem::cpu {
namespace {

constexpr int64_t kScanChunk = 64;  // tokens

class CompiledSsmScan final : public CompiledOp {
 public:
  CompiledSsmScan(const CompileContext& context, const Node& node, const SsmScanOp& op)
      : op_(op),
        kernel_(context.kernels.rows.ssm_scan),
        kv_(context.segment.kv[node.layer]),
        sequences_(context, op),
        xbc_(context.address<const float>(op.xbc)),
        dt_(context.address<const float>(op.dt)),
        decay_(context.address<const float>(op.decay)),
        dt_bias_(context.address<const float>(op.dt_bias)),
        skip_(context.address<const float>(op.skip)),
        y_(context.address<float>(node.output)) {
    TANDEM_CHECK(kv_.head_dim_v == op.n_inner() * op.n_state);
    scratch_bytes = 2 * kScanChunk * sizeof(float);
  }

  void run(Worker& worker, const RunContext& context) const override {
    const int64_t n_tokens = context.shape.n_tokens;
    const int64_t n_tiles = (op_.head_dim + kStateTileColumns - 1) / kStateTileColumns;
    const int64_t n_of_sequence = op_.n_head * n_tiles;
    worker.for_each(sequences_.count(n_tokens) * n_of_sequence, [&](int64_t item) {
      update(sequences_.at(item / n_of_sequence, n_tokens), item % n_of_sequence / n_tiles,
             item % n_tiles * kStateTileColumns, reinterpret_cast<float*>(context.scratch));
    });
  }

 private:
  void update(const SequenceTokens& s, int64_t head, int64_t first, float* scratch) const {
    const int64_t d = op_.head_dim, n_xbc = op_.n_xbc();
    const int64_t group = head / (op_.n_head / op_.n_group);
    float *decay = scratch, *dt = scratch + kScanChunk;
    SsmScanTile tile{};
    tile.n_cols = std::min(kStateTileColumns, d - first);
    tile.n_state = op_.n_state;
    tile.stride = n_xbc;
    tile.y_stride = op_.n_inner();
    tile.skip = skip_[head];
    tile.decay = decay;
    tile.dt = dt;
    begin_state(kv_, s, {head * op_.n_state * d + first, op_.n_state, tile.n_cols, d}, tile);
    for (int64_t at = 0; at < s.n; at += kScanChunk) {
      tile.n_tokens = std::min(kScanChunk, s.n - at);
      const int64_t token = s.first + at;
      for (int64_t i = 0; i < tile.n_tokens; ++i) {
        dt[i] = softplus(dt_[(token + i) * op_.n_head + head] + dt_bias_[head]);
        decay[i] = std::exp(decay_[head] * dt[i]);
      }
      const float* row = xbc_ + token * n_xbc;
      tile.x = row + head * d + first;
      tile.b = row + op_.n_inner() + group * op_.n_state;
      tile.c = tile.b + op_.n_group * op_.n_state;
      tile.y = y_ + token * tile.y_stride + head * d + first;
      kernel_(tile);
      tile.old = tile.state;
    }
  }

  SsmScanOp op_;
  decltype(RowKernels::ssm_scan) kernel_;
  KvLayer kv_;  // of a state slot: [n_head, n_state, head_dim]
  StepSequences sequences_;
  const float* xbc_;                       // [n_tokens, n_xbc]
  const float* dt_;                        // [n_tokens, n_head]
  const float *decay_, *dt_bias_, *skip_;  // [n_head]
  float* y_;                               // [n_tokens, n_head * head_dim]
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const SsmScanOp& op) {
  return std::make_unique<CompiledSsmScan>(context, node, op);
}

}  // namespace tandem::cpu
