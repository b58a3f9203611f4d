// ssm_scan: the state space of Mamba-2. As in delta_rule, a worker takes a tile of columns of one head's state and
// one sequence, small enough for the first cache, and goes through all tokens with it, in chunks; the products of b and c
// are computed once for all heads of a group.
// TODO
#include <algorithm>
#include <cmath>

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
        xbc_(context.address<const float>(op.xbc)),
        dt_(context.address<const float>(op.dt)),
        decay_(context.address<const float>(op.decay)),
        dt_bias_(context.address<const float>(op.dt_bias)),
        skip_(context.address<const float>(op.skip)),
        y_(context.address<float>(node.output)) {
    TANDEM_CHECK(kv_.head_dim_v == op.n_inner() * op.n_state);
    scratch_bytes = Room::n_bytes(op.n_state);
    shared_bytes =
        static_cast<size_t>(n_windows(context.tensor(op.xbc).n_rows) * op.n_group * kWindowProducts) * sizeof(float);
  }

  void run(Worker& worker, const RunContext& context) const override {
    const int64_t n_tokens = context.shape.n_tokens, n_sequences = sequences_.count(n_tokens);
    if (n_tokens > n_sequences) {
      worker.for_each(n_windows(n_tokens) * op_.n_group,
                      [&](int64_t item) { multiply_rows(context, item / op_.n_group, item % op_.n_group); });
    }
    const int64_t n_tiles = (op_.head_dim + kStateTileColumns - 1) / kStateTileColumns;
    const int64_t n_of_sequence = op_.n_head * n_tiles;
    worker.for_each(n_sequences * n_of_sequence, [&](int64_t item) {
      update(context, sequences_.at(item / n_of_sequence, n_tokens), item % n_of_sequence / n_tiles,
             item % n_tiles * kStateTileColumns);
    });
  }

 private:
  // A worker's scratch.
  struct Room {
    float *chunk, *panel, *b, *c, *decay, *dt;
    Room(std::byte* scratch, int64_t n_state)
        : chunk(reinterpret_cast<float*>(scratch)),
          panel(chunk + kStateScratch),
          b(panel + StatePanel::n_floats(n_state)),
          c(b + kStateChunk * n_state),
          decay(c + kStateChunk * n_state),
          dt(decay + kStateChunk) {}
    static size_t n_bytes(int64_t n_state) {
      return static_cast<size_t>(kStateScratch + StatePanel::n_floats(n_state) + 2 * kStateChunk * (n_state + 1)) * sizeof(float);
    }
  };

  // Of c with b, [kStateChunk, kStateChunk].
  float* products(const RunContext& context, int64_t window, int64_t group) const {
    return reinterpret_cast<float*>(context.shared) + (window * op_.n_group + group) * kWindowProducts;
  }

  // Rows of different tokens are a power of two apart in some models and would push each other out of the first cache.
  void gather(int64_t token, int64_t n, int64_t group, const Room& room) const {
    const int64_t n_state = op_.n_state;
    for (int64_t i = 0; i < n; ++i) {
      const float* b = xbc_ + (token + i) * op_.n_xbc() + op_.n_inner() + group * n_state;
      std::copy_n(b, n_state, room.b + i * n_state);
      std::copy_n(b + op_.n_group * n_state, n_state, room.c + i * n_state);
    }
  }

  void multiply_rows(const RunContext& context, int64_t window, int64_t group) const {
    const int64_t n_state = op_.n_state, first = window * kStateChunk;
    const int64_t n = std::min(kStateChunk, context.shape.n_tokens - first);
    const Room room(context.scratch, n_state);
    gather(first, n, group, room);
    kernels_.lower_products(
        {room.c, room.b, n_state, n, n_state, products(context, window, group), kStateChunk});
  }

  void update(const RunContext& context, const SequenceTokens& s, int64_t head, int64_t first) const {
    const int64_t n_state = op_.n_state, d = op_.head_dim;
    const Room room(context.scratch, n_state);
    const StateColumns columns{head * n_state * d + first, n_state, std::min(kStateTileColumns, d - first), d};
    SsmScanTile tile{};
    tile.n_cols = columns.n_cols;
    tile.n_state = tile.bc_stride = n_state;
    tile.b = room.b;
    tile.c = room.c;
    tile.stride = op_.n_xbc();
    tile.y_stride = op_.n_inner();
    tile.skip = skip_[head];
    tile.decay = room.decay;
    tile.dt = room.dt;
    tile.scratch = room.chunk;
    begin_state(kv_, s, columns, tile);
    if (s.n == 1) {
      read_tokens(tile, s.first, 1, head, first, room);
      return kernels_.ssm_scan(tile);
    }
    const StatePanel panel(columns, room.panel, tile);
    for_each_chunk(s, [&](int64_t token, int64_t n, int64_t at) {
      read_tokens(tile, token, n, head, first, room);
      tile.products = products(context, token / kStateChunk, group_of(head)) + at;
      kernels_.ssm_scan_chunk(tile);
    });
    panel.store();
  }

  int64_t group_of(int64_t head) const { return head / (op_.n_head / op_.n_group); }

  void read_tokens(SsmScanTile& tile, int64_t token, int64_t n, int64_t head, int64_t first, const Room& room) const {
    const int64_t in_head = head * op_.head_dim + first;
    tile.n_tokens = n;
    tile.x = xbc_ + token * op_.n_xbc() + in_head;
    tile.y = y_ + token * tile.y_stride + in_head;
    gather(token, n, group_of(head), room);
    for (int64_t i = 0; i < n; ++i) {
      room.dt[i] = softplus(dt_[(token + i) * op_.n_head + head] + dt_bias_[head]);
      room.decay[i] = std::exp(decay_[head] * room.dt[i]);
    }
  }

  SsmScanOp op_;
  const RowKernels& kernels_;
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
