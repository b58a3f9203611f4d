// ssm_scan: the state space of Mamba-2. As in delta_rule, a worker takes a tile of columns of one head's state and
// one sequence, small enough for the first cache, and goes through all tokens with it, in chunks; the products of b and c
// are computed once for all heads of a group.
// Floors: the states read and written once, 2 * H * N * d floats of each sequence, over the bandwidth; for many tokens
// n * (4 H N d + C (H d + G N)) operations in chunks of C, 5 n H N d token by token, over the peak.
#include <algorithm>
#include <cmath>
#include <optional>

#include "cpu/ops/recurrent.h"
#include "cpu/ops/rows.h"

namespace tandem::cpu {
namespace {

class CompiledSsmScan final : public CompiledOp {
 public:
  CompiledSsmScan(const CompileContext& context, const Node& node, const SsmScanOp& op)
      : op_(op),
        kernels_(context.kernels.rows),
        kv_(context.segment.kv[node.layer]),
        sequences_(context, op),
        windows_(op.n_group, op.n_state, 1),
        xbc_(context.address<const float>(op.xbc)),
        dt_(context.address<const float>(op.dt)),
        decay_(context.address<const float>(op.decay)),
        dt_bias_(context.address<const float>(op.dt_bias)),
        skip_(context.address<const float>(op.skip)),
        y_(context.address<float>(node.output)) {
    TANDEM_CHECK(kv_.head_dim_v == op.n_inner() * op.n_state);
    scratch_bytes = Room::n_bytes(op.n_state);
    shared_bytes = windows_.n_bytes(context.tensor(op.xbc).n_rows);
  }

  void run(Worker& worker, const RunContext& context) const override {
    for_each_tile(
        worker, sequences_, windows_, {op_.n_group, op_.n_head, op_.head_dim}, context.shape.n_tokens,
        [&](int64_t token, int64_t key_head) { fill_window(context, token, key_head); },
        [&](const SequenceTokens& s, int64_t head, int64_t first, bool are_single) {
          update(context, s, head, first, are_single);
        });
  }

 private:
  // A worker's scratch.
  struct Room {
    float *chunk, *panel, *decay, *dt;
    Room(std::byte* scratch, int64_t n_state)
        : chunk(reinterpret_cast<float*>(scratch)),
          panel(chunk + kStateScratch),
          decay(panel + StatePanel::n_floats(n_state)),
          dt(decay + kStateChunk) {}
    static size_t n_bytes(int64_t n_state) {
      return static_cast<size_t>(kStateScratch + StatePanel::n_floats(n_state) + 2 * kStateChunk) *
             sizeof(float);
    }
  };

  const float* row_b(int64_t token, int64_t group) const {
    return xbc_ + token * op_.n_xbc() + op_.n_inner() + group * op_.n_state;
  }
  const float* row_c(int64_t token, int64_t group) const {
    return row_b(token, group) + op_.n_group * op_.n_state;
  }

  void fill_window(const RunContext& context, int64_t first, int64_t group) const {
    const int64_t n_state = op_.n_state, n = std::min(kStateChunk, context.shape.n_tokens - first);
    const KeyWindow w = windows_.at(context.shared, first, group);
    for (int64_t i = 0; i < n; ++i) {
      std::copy_n(row_b(first + i, group), n_state, w.k + i * n_state);
      std::copy_n(row_c(first + i, group), n_state, w.q + i * n_state);
    }
    kernels_.lower_products({w.q, w.k, n_state, n, n_state, w.queries, kStateChunk});
  }

  void update(const RunContext& context, const SequenceTokens& s, int64_t head, int64_t first,
              bool is_single) const {
    const int64_t n_state = op_.n_state, d = op_.head_dim, in_head = head * d + first;
    const int64_t group = head / (op_.n_head / op_.n_group);
    const Room room(context.scratch, n_state);
    const StateColumns columns{head * n_state * d + first, n_state, std::min(kStateTileColumns, d - first),
                               d};
    SsmScanTile tile{};
    tile.n_cols = columns.n_cols;
    tile.n_state = tile.bc_stride = n_state;
    tile.stride = op_.n_xbc();
    tile.y_stride = op_.n_inner();
    tile.skip = skip_[head];
    tile.decay = room.decay;
    tile.dt = room.dt;
    tile.scratch = room.chunk;
    begin_state(kv_, s, columns, tile);
    const auto take_chunk = [&](int64_t token, int64_t n) {
      tile.n_tokens = n;
      tile.x = xbc_ + token * op_.n_xbc() + in_head;
      tile.y = y_ + token * tile.y_stride + in_head;
      for (int64_t i = 0; i < n; ++i) {
        room.dt[i] = softplus(dt_[(token + i) * op_.n_head + head] + dt_bias_[head]);
        room.decay[i] = std::exp(decay_[head] * room.dt[i]);
      }
    };
    if (is_single) {
      tile.b = row_b(s.first, group);
      tile.c = row_c(s.first, group);
      take_chunk(s.first, 1);
      return kernels_.ssm_scan(tile);
    }
    std::optional<StatePanel> panel;
    if (s.n >= kMinChunk) panel.emplace(columns, room.panel, tile);
    const auto take = panel ? kernels_.ssm_scan_chunk : kernels_.ssm_scan;
    for_each_chunk(s, [&](int64_t token, int64_t n) {
      take_chunk(token, n);
      const int64_t n_next = std::min(kStateChunk, s.first + s.n - token - n);
      prefetch_rows(tile.x + n * tile.stride, n_next, tile.n_cols, tile.stride);
      prefetch_rows(tile.y + n * tile.y_stride, n_next, tile.n_cols, tile.y_stride);
      const KeyWindow w = windows_.from(context.shared, token, group);
      tile.b = w.k;
      tile.c = w.q;
      tile.products = w.queries;
      take(tile);
      tile.old = tile.state;
    });
    if (panel) panel->store();
  }

  SsmScanOp op_;
  const RowKernels& kernels_;
  KvLayer kv_;  // of a state slot: [n_head, n_state, head_dim]
  StepSequences sequences_;
  KeyWindows windows_;
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
