// delta_rule: the gated delta rule of a recurrent layer. The columns of a head's state do not depend on each
// other, so a worker takes a tile of columns of one head and one sequence, small enough for the first cache, and
// goes through all tokens with it: in chunks (simd/recurrent_chunks.h), whose products of keys and queries are computed
// before, once for all heads and tiles with the same keys; a single token by itself.
// Floors: the states read and written once, 2 * Hv * dk * dv floats of each sequence, over the bandwidth; for many tokens
// n * (6 Hv dk dv + 2 C (Hv dv + Hk dk)) operations in chunks of C, 7 n Hv dk dv token by token, over the peak. For the
// fractions of the peak see simd/recurrent_chunks.h. Of the op with 512 tokens (tests/bench/recurrent_bench.cpp) the kernel
// takes three quarters, products of keys 5%; the rest is q, k, v and y, 24 MB of rows that lie far apart. A single token with
// 2 MiB of states reads them twice, the second time from the first cache.
#include <cmath>
#include <optional>

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
        windows_(op.n_head_k, op.head_dim_k, 2),
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
    shared_bytes = windows_.n_bytes(context.tensor(op.qkv).n_rows);
  }

  void run(Worker& worker, const RunContext& context) const override {
    for_each_tile(
        worker, sequences_, windows_, {op_.n_head_k, op_.n_head_v, op_.head_dim_v}, context.shape.n_tokens,
        [&](int64_t token, int64_t key_head) { fill_window(context, token, key_head); },
        [&](const SequenceTokens& s, int64_t head, int64_t first, bool are_single) {
          update(context, s, head, first, are_single);
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
          k(q + dk),
          decay(k + dk),
          beta(decay + kStateChunk) {}
    static size_t n_bytes(int64_t dk) {
      return static_cast<size_t>(kStateScratch + StatePanel::n_floats(dk) + 2 * (dk + kStateChunk)) *
             sizeof(float);
    }
  };

  void normalize(int64_t token, int64_t key_head, float* q, float* k) const {
    const int64_t dk = op_.head_dim_k;
    const float eps = kDeltaRuleEps / static_cast<float>(dk);
    const float* row = qkv_ + token * op_.n_qkv() + key_head * dk;
    kernels_.rms_norm(row, q_scale_.data(), nullptr, eps, q, dk);
    kernels_.rms_norm(row + op_.n_head_k * dk, k_scale_.data(), nullptr, eps, k, dk);
  }

  void fill_window(const RunContext& context, int64_t first, int64_t key_head) const {
    const int64_t dk = op_.head_dim_k, n = std::min(kStateChunk, context.shape.n_tokens - first);
    const KeyWindow w = windows_.at(context.shared, first, key_head);
    for (int64_t i = 0; i < n; ++i) normalize(first + i, key_head, w.q + i * dk, w.k + i * dk);
    kernels_.lower_products({w.k, w.k, dk, n, dk, w.keys, kStateChunk});
    kernels_.lower_products({w.q, w.k, dk, n, dk, w.queries, kStateChunk});
  }

  void update(const RunContext& context, const SequenceTokens& s, int64_t head, int64_t first,
              bool is_single) const {
    const int64_t dk = op_.head_dim_k, dv = op_.head_dim_v, in_head = head * dv + first;
    const Room room(context.scratch, dk);
    const StateColumns columns{head * dk * dv + first, dk, std::min(kStateTileColumns, dv - first), dv};
    DeltaRuleTile tile{};
    tile.n_cols = columns.n_cols;
    tile.head_dim_k = dk;
    tile.v_stride = op_.n_qkv();
    tile.y_stride = op_.n_head_v * dv;
    tile.decay = room.decay;
    tile.beta = room.beta;
    tile.scratch = room.chunk;
    begin_state(kv_, s, columns, tile);
    const float* const v = qkv_ + 2 * op_.n_head_k * dk + in_head;
    const auto take_chunk = [&](int64_t token, int64_t n) {
      tile.n_tokens = n;
      tile.v = v + token * tile.v_stride;
      tile.y = y_ + token * tile.y_stride + in_head;
      for (int64_t i = 0; i < n; ++i) {
        const int64_t gate = (token + i) * op_.n_head_v + head;
        room.decay[i] = std::exp(decay_[head] * softplus(alpha_[gate] + dt_bias_[head]));
        room.beta[i] = 1.0f / (1.0f + std::exp(-beta_[gate]));
      }
    };
    if (is_single) {
      normalize(s.first, op_.key_head(head), room.q, room.k);
      tile.q = room.q;
      tile.k = room.k;
      take_chunk(s.first, 1);
      return kernels_.delta_rule(tile);
    }
    std::optional<StatePanel> panel;
    if (s.n >= kMinChunk) panel.emplace(columns, room.panel, tile);
    const auto take = panel ? kernels_.delta_rule_chunk : kernels_.delta_rule;
    for_each_chunk(s, [&](int64_t token, int64_t n) {
      take_chunk(token, n);
      const int64_t n_next = std::min(kStateChunk, s.first + s.n - token - n);
      prefetch_rows(tile.v + n * tile.v_stride, n_next, tile.n_cols, tile.v_stride);
      prefetch_rows(tile.y + n * tile.y_stride, n_next, tile.n_cols, tile.y_stride);
      const KeyWindow w = windows_.from(context.shared, token, op_.key_head(head));
      tile.q = w.q;
      tile.k = w.k;
      tile.queries = w.queries;
      tile.keys = w.keys;
      take(tile);
      tile.old = tile.state;
    });
    if (panel) panel->store();
  }

  DeltaRuleOp op_;
  const RowKernels& kernels_;
  KvLayer kv_;  // of a state slot: [n_head_v, head_dim_k, head_dim_v]
  StepSequences sequences_;
  KeyWindows windows_;
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
