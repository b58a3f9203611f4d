// delta_rule: the gated delta rule of a recurrent layer. The columns of a head's state do not depend on each
// other, so a worker takes a tile of columns of one head and one sequence, small enough for the first cache, and
// goes through all tokens with it: in chunks (simd/recurrent_chunks.h), whose products of keys and queries are computed
// before, once for all heads and tiles with the same keys; a single token by itself.
// TODO
#include <cmath>

#include "cpu/ops/recurrent.h"
#include "cpu/ops/rows.h"

namespace tandem::cpu {
namespace {

class CompiledDeltaRule final : public CompiledOp {
 public:
  CompiledDeltaRule(const CompileContext& context, const Node& node, const DeltaRuleOp& op)
      : op_(op),
        kernels_(context.kernels.rows),
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
    scratch_bytes = Room::n_bytes(op.head_dim_k);
    shared_bytes = static_cast<size_t>(n_windows(context.tensor(op.qkv).n_rows) * op.n_head_k * 2 * kWindowProducts) *
                   sizeof(float);
  }

  void run(Worker& worker, const RunContext& context) const override {
    const int64_t n_tokens = context.shape.n_tokens, n_sequences = sequences_.count(n_tokens);
    if (n_tokens > n_sequences) {
      worker.for_each(n_windows(n_tokens) * op_.n_head_k, [&](int64_t item) {
        multiply_keys(context, item / op_.n_head_k, item % op_.n_head_k);
      });
    }
    const int64_t n_tiles = (op_.head_dim_v + kStateTileColumns - 1) / kStateTileColumns;
    const int64_t n_of_sequence = op_.n_head_v * n_tiles;
    worker.for_each(n_sequences * n_of_sequence, [&](int64_t item) {
      update(context, sequences_.at(item / n_of_sequence, n_tokens), item % n_of_sequence / n_tiles,
             item % n_tiles * kStateTileColumns);
    });
  }

 private:
  // A worker's scratch.
  struct Room {
    float *chunk, *panel, *q, *k, *decay, *beta;
    Room(std::byte* scratch, int64_t dk)
        : chunk(reinterpret_cast<float*>(scratch)),
          panel(chunk + kStateScratch),
          q(panel + StatePanel::n_floats(dk)),
          k(q + kStateChunk * dk),
          decay(k + kStateChunk * dk),
          beta(decay + kStateChunk) {}
    static size_t n_bytes(int64_t dk) {
      return static_cast<size_t>(kStateScratch + StatePanel::n_floats(dk) + 2 * kStateChunk * (dk + 1)) * sizeof(float);
    }
  };

  // Of k with k, then of q with k, [2, kStateChunk, kStateChunk].
  float* products(const RunContext& context, int64_t window, int64_t key_head) const {
    return reinterpret_cast<float*>(context.shared) + (window * op_.n_head_k + key_head) * 2 * kWindowProducts;
  }

  void normalize(int64_t token, int64_t n, int64_t key_head, const Room& room) const {
    const int64_t dk = op_.head_dim_k;
    const float eps = kDeltaRuleEps / static_cast<float>(dk);
    for (int64_t i = 0; i < n; ++i) {
      const float* row = qkv_ + (token + i) * op_.n_qkv() + key_head * dk;
      kernels_.rms_norm(row, q_scale_.data(), nullptr, eps, room.q + i * dk, dk);
      kernels_.rms_norm(row + op_.n_head_k * dk, k_scale_.data(), nullptr, eps, room.k + i * dk, dk);
    }
  }

  void multiply_keys(const RunContext& context, int64_t window, int64_t key_head) const {
    const int64_t dk = op_.head_dim_k, first = window * kStateChunk;
    const int64_t n = std::min(kStateChunk, context.shape.n_tokens - first);
    const Room room(context.scratch, dk);
    normalize(first, n, key_head, room);
    float* const to = products(context, window, key_head);
    kernels_.lower_products({room.k, room.k, dk, n, dk, to, kStateChunk});
    kernels_.lower_products({room.q, room.k, dk, n, dk, to + kWindowProducts, kStateChunk});
  }

  void update(const RunContext& context, const SequenceTokens& s, int64_t head, int64_t first) const {
    const int64_t dk = op_.head_dim_k, dv = op_.head_dim_v;
    const Room room(context.scratch, dk);
    const StateColumns columns{head * dk * dv + first, dk, std::min(kStateTileColumns, dv - first), dv};
    DeltaRuleTile tile{};
    tile.n_cols = columns.n_cols;
    tile.head_dim_k = dk;
    tile.v_stride = op_.n_qkv();
    tile.y_stride = op_.n_head_v * dv;
    tile.q = room.q;
    tile.k = room.k;
    tile.decay = room.decay;
    tile.beta = room.beta;
    tile.scratch = room.chunk;
    begin_state(kv_, s, columns, tile);
    if (s.n == 1) {
      read_tokens(tile, s.first, 1, head, first, room);
      return kernels_.delta_rule(tile);
    }
    const StatePanel panel(columns, room.panel, tile);
    for_each_chunk(s, [&](int64_t token, int64_t n, int64_t at) {
      read_tokens(tile, token, n, head, first, room);
      tile.keys = products(context, token / kStateChunk, op_.key_head(head)) + at;
      tile.queries = tile.keys + kWindowProducts;
      kernels_.delta_rule_chunk(tile);
    });
    panel.store();
  }

  void read_tokens(DeltaRuleTile& tile, int64_t token, int64_t n, int64_t head, int64_t first, const Room& room) const {
    const int64_t in_head = head * op_.head_dim_v + first;
    tile.n_tokens = n;
    tile.v = qkv_ + token * op_.n_qkv() + 2 * op_.n_head_k * op_.head_dim_k + in_head;
    tile.y = y_ + token * tile.y_stride + in_head;
    normalize(token, n, op_.key_head(head), room);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t gate = (token + i) * op_.n_head_v + head;
      room.decay[i] = std::exp(decay_[head] * softplus(alpha_[gate] + dt_bias_[head]));
      room.beta[i] = 1.0f / (1.0f + std::exp(-beta_[gate]));
    }
  }

  DeltaRuleOp op_;
  const RowKernels& kernels_;
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
