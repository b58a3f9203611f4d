// ssm_scan: the state space of Mamba-2. As in delta_rule, a warp keeps kColumns columns of a head's state in
// registers, lane l the rows l, l + 32, ..., and goes through the tokens of one sequence: one sum over the lanes for
// each column and token. Floors: the states once, 2 * H * N * d floats of each sequence, over the bandwidth;
// 3 * n * H * N * d multiplications and additions.
#include <algorithm>

#include "ggml-cuda/ops/recurrent.cuh"
#include "ggml-cuda/ops/rows.cuh"

namespace tandem::cuda {
namespace {

constexpr int kColumns = 8;  // of a warp: 32 bytes of each row of the state
constexpr int kWarps = 4;
constexpr int kMaxState = 256;

struct SsmScanCall {
  const float* xbc;                     // [n, n_xbc]
  const float* dt;                      // [n, n_head]
  const float *decay, *dt_bias, *skip;  // [n_head]
  float* y;                             // [n, n_head * head_dim]
  float* pool;                          // [n_slots, n_head, n_state, head_dim]
  StepTokens tokens;
  int n_head, head_dim, n_group, n_state;
};

// The grid's x is the tiles of columns, its y the head, its z the sequence. kRows * 32 >= n_state.
template <int kRows>
__global__ void __launch_bounds__(kWarps* kWarp) ssm_scan(const __grid_constant__ SsmScanCall call) {
  let_next_begin();
  wait_for_previous();
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int column = (static_cast<int>(blockIdx.x) * kWarps + warp) * kColumns;
  const int head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z);
  const int begin = first_token(call.tokens, sequence), end = first_token(call.tokens, sequence + 1);
  if (column >= call.head_dim || begin == end) return;  // whole warps
  const int d = call.head_dim, n_state = call.n_state;
  const int group = head / (call.n_head / call.n_group);
  const int64_t n_inner = static_cast<int64_t>(call.n_head) * d;
  const int64_t n_xbc = n_inner + 2 * static_cast<int64_t>(call.n_group) * n_state;
  const int64_t slot_size = n_inner * n_state;
  const int64_t in_slot = static_cast<int64_t>(head) * n_state * d + column;
  const bool is_start = call.tokens.positions[begin] == 0;
  const float* old = call.pool + call.tokens.states[2 * sequence] * slot_size + in_slot;

  float state[kRows][kColumns];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = r * kWarp + lane;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const bool exists = !is_start && row < n_state && column + j < d;
      state[r][j] = exists ? old[static_cast<int64_t>(row) * d + j] : 0.0f;
    }
  }
  const float rate = call.decay[head], bias = call.dt_bias[head], skip = call.skip[head];
  for (int token = begin; token < end; ++token) {
    const float* x = call.xbc + token * n_xbc + head * d + column;
    const float* row_b = call.xbc + token * n_xbc + n_inner + group * n_state;
    const float* row_c = row_b + call.n_group * n_state;
    float b[kRows], c[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int i = r * kWarp + lane;
      b[r] = i < n_state ? row_b[i] : 0.0f;
      c[r] = i < n_state ? row_c[i] : 0.0f;
    }
    const float in = call.dt[static_cast<int64_t>(token) * call.n_head + head] + bias;
    const float dt = in > 20.0f ? in : log1pf(expf(in));
    const float decay = expf(rate * dt);
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const bool exists = column + j < d;
      const float xj = exists ? x[j] : 0.0f;
      float y = 0.0f;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        state[r][j] = decay * state[r][j] + b[r] * (dt * xj);
        y += state[r][j] * c[r];
      }
      y = warp_sum(y) + skip * xj;
      if (exists && lane == j) call.y[token * n_inner + head * d + column + j] = y;
    }
  }
  float* result = call.pool + call.tokens.states[2 * sequence + 1] * slot_size + in_slot;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = r * kWarp + lane;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      if (row < n_state && column + j < d) result[static_cast<int64_t>(row) * d + j] = state[r][j];
    }
  }
}

class CompiledSsmScan final : public CompiledOp {
 public:
  CompiledSsmScan(const CompileContext& context, const Node& node, const SsmScanOp& op)
      : max_sequences_(context.tensor(op.states).n_rows) {
    const KvLayer& kv = context.segment.kv[node.layer];
    TANDEM_CHECK(kv.head_dim_v == op.n_inner() * op.n_state);
    call_.xbc = context.address<const float>(op.xbc);
    call_.dt = context.address<const float>(op.dt);
    call_.decay = context.address<const float>(op.decay);
    call_.dt_bias = context.address<const float>(op.dt_bias);
    call_.skip = context.address<const float>(op.skip);
    call_.y = context.address<float>(node.output);
    call_.pool = reinterpret_cast<float*>(kv.v);
    call_.tokens = step_tokens(context, op);
    call_.n_head = static_cast<int>(op.n_head);
    call_.head_dim = static_cast<int>(op.head_dim);
    call_.n_group = static_cast<int>(op.n_group);
    call_.n_state = static_cast<int>(op.n_state);
  }

  void launch(const LaunchContext& context) const override {
    SsmScanCall call = call_;
    call.tokens.n = static_cast<int>(context.shape.n_tokens);
    const auto n_sequences = static_cast<unsigned>(std::min<int64_t>(max_sequences_, call.tokens.n));
    const dim3 grid(blocks_of(call.head_dim, kWarps * kColumns), static_cast<unsigned>(call.n_head),
                    n_sequences);
    const auto launch = [&](auto* kernel) {
      launch_overlapping(kernel, grid, kWarps * kWarp, 0, context.stream, call);
    };
    if (call.n_state <= kWarp) return launch(ssm_scan<1>);
    if (call.n_state <= 2 * kWarp) return launch(ssm_scan<2>);
    if (call.n_state <= 4 * kWarp) return launch(ssm_scan<4>);
    launch(ssm_scan<8>);
  }

 private:
  SsmScanCall call_{};
  int64_t max_sequences_;
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const SsmScanOp& op) {
  return std::make_unique<CompiledSsmScan>(context, node, op);
}

std::string why_not(const Graph&, const SsmScanOp& op) {
  if (op.n_state <= kMaxState) return "";
  return "states of " + std::to_string(op.n_state) + " rows, at most " + std::to_string(kMaxState);
}

}  // namespace tandem::cuda
