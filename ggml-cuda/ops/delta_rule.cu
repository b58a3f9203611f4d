// delta_rule: the gated delta rule of a recurrent layer. The columns of a head's state do not depend on each
// other. A warp keeps kColumns of them in registers, lane l the rows l, l + 32, ..., and goes through the tokens
// of one sequence: two sums over the lanes for each column and token, and two more for the lengths of q and k.
// Reads and writes the states once, 2 * Hv * dk * dv floats of each sequence.
#include <algorithm>

#include "ggml-cuda/ops/recurrent.cuh"
#include "ggml-cuda/ops/rows.cuh"

namespace tandem::cuda {
namespace {

constexpr int kColumns = 8;  // of a warp: 32 bytes of each row of the state
constexpr int kWarps = 4;
constexpr int kMaxKeyDim = 256;

struct DeltaRuleCall {
  const float* qkv;              // [n, n_qkv]
  const float *beta, *alpha;     // [n, n_head_v]
  const float *decay, *dt_bias;  // [n_head_v]
  float* y;                      // [n, n_head_v * dv]
  float* pool;                   // [n_slots, n_head_v, dk, dv]
  StepTokens tokens;
  int n_head_k, n_head_v, dk, dv;
  bool tiled;
};

// The grid's x is the tiles of columns, its y the head of v, its z the sequence. kRows * 32 >= dk.
template <int kRows>
__global__ void __launch_bounds__(kWarps* kWarp) delta_rule(const __grid_constant__ DeltaRuleCall call) {
  let_next_begin();
  wait_for_previous();
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int column = (static_cast<int>(blockIdx.x) * kWarps + warp) * kColumns;
  const int head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z);
  const int begin = first_token(call.tokens, sequence), end = first_token(call.tokens, sequence + 1);
  if (column >= call.dv || begin == end) return;  // whole warps
  const int dk = call.dk, dv = call.dv;
  const int key_head = call.tiled ? head % call.n_head_k : head / (call.n_head_v / call.n_head_k);
  const int64_t n_qkv =
      2 * static_cast<int64_t>(call.n_head_k) * dk + static_cast<int64_t>(call.n_head_v) * dv;
  const int64_t slot_size = static_cast<int64_t>(call.n_head_v) * dk * dv;
  const int64_t in_slot = static_cast<int64_t>(head) * dk * dv + column;
  const bool is_start = call.tokens.positions[begin] == 0;
  const float* old = call.pool + call.tokens.states[2 * sequence] * slot_size + in_slot;

  float state[kRows][kColumns];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = r * kWarp + lane;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const bool exists = !is_start && row < dk && column + c < dv;
      state[r][c] = exists ? old[static_cast<int64_t>(row) * dv + c] : 0.0f;
    }
  }
  const float rate = call.decay[head], bias = call.dt_bias[head];
  for (int token = begin; token < end; ++token) {
    const float* row = call.qkv + token * n_qkv;
    float q[kRows], k[kRows], q_square = 0.0f, k_square = 0.0f;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int i = r * kWarp + lane;
      q[r] = i < dk ? row[key_head * dk + i] : 0.0f;
      k[r] = i < dk ? row[(call.n_head_k + key_head) * dk + i] : 0.0f;
      q_square += q[r] * q[r];
      k_square += k[r] * k[r];
    }
    const float q_scale = rsqrtf(warp_sum(q_square) + kDeltaRuleEps) * rsqrtf(static_cast<float>(dk));
    const float k_scale = rsqrtf(warp_sum(k_square) + kDeltaRuleEps);
    const int64_t gate = static_cast<int64_t>(token) * call.n_head_v + head;
    const float a = call.alpha[gate] + bias;
    const float decay = expf(rate * (a > 20.0f ? a : log1pf(expf(a))));
    const float beta = 1.0f / (1.0f + expf(-call.beta[gate]));
    const float* v = row + 2 * call.n_head_k * dk + head * dv + column;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const bool exists = column + c < dv;
      float known = 0.0f;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        state[r][c] *= decay;
        known += state[r][c] * k[r];
      }
      known = warp_sum(known) * k_scale;
      const float correction = ((exists ? v[c] : 0.0f) - known) * beta * k_scale;
      float y = 0.0f;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        state[r][c] += k[r] * correction;
        y += state[r][c] * q[r];
      }
      y = warp_sum(y) * q_scale;
      if (exists && lane == c)
        call.y[(static_cast<int64_t>(token) * call.n_head_v + head) * dv + column + c] = y;
    }
  }
  float* result = call.pool + call.tokens.states[2 * sequence + 1] * slot_size + in_slot;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = r * kWarp + lane;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (row < dk && column + c < dv) result[static_cast<int64_t>(row) * dv + c] = state[r][c];
    }
  }
}

class CompiledDeltaRule final : public CompiledOp {
 public:
  CompiledDeltaRule(const CompileContext& context, const Node& node, const DeltaRuleOp& op)
      : max_sequences_(context.tensor(op.states).n_rows) {
    const KvLayer& kv = context.segment.kv[node.layer];
    TANDEM_CHECK(kv.head_dim_v == op.n_head_v * op.head_dim_k * op.head_dim_v);
    call_.qkv = context.address<const float>(op.qkv);
    call_.beta = context.address<const float>(op.beta);
    call_.alpha = context.address<const float>(op.alpha);
    call_.decay = context.address<const float>(op.decay);
    call_.dt_bias = context.address<const float>(op.dt_bias);
    call_.y = context.address<float>(node.output);
    call_.pool = reinterpret_cast<float*>(kv.v);
    call_.tokens = step_tokens(context, op);
    call_.n_head_k = static_cast<int>(op.n_head_k);
    call_.n_head_v = static_cast<int>(op.n_head_v);
    call_.dk = static_cast<int>(op.head_dim_k);
    call_.dv = static_cast<int>(op.head_dim_v);
    call_.tiled = op.order == HeadOrder::tiled;
  }

  void launch(const LaunchContext& context) const override {
    DeltaRuleCall call = call_;
    call.tokens.n = static_cast<int>(context.shape.n_tokens);
    const auto n_sequences = static_cast<unsigned>(std::min<int64_t>(max_sequences_, call.tokens.n));
    const dim3 grid(blocks_of(call.dv, kWarps * kColumns), static_cast<unsigned>(call.n_head_v), n_sequences);
    const auto launch = [&](auto* kernel) {
      launch_overlapping(kernel, grid, kWarps * kWarp, 0, context.stream, call);
    };
    if (call.dk <= kWarp) return launch(delta_rule<1>);
    if (call.dk <= 2 * kWarp) return launch(delta_rule<2>);
    if (call.dk <= 4 * kWarp) return launch(delta_rule<4>);
    launch(delta_rule<8>);
  }

 private:
  DeltaRuleCall call_{};
  int64_t max_sequences_;
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const DeltaRuleOp& op) {
  return std::make_unique<CompiledDeltaRule>(context, node, op);
}

std::string why_not(const Graph&, const DeltaRuleOp& op) {
  if (op.head_dim_k <= kMaxKeyDim) return "";
  return "keys of " + std::to_string(op.head_dim_k) + " elements, at most " + std::to_string(kMaxKeyDim);
}

}  // namespace tandem::cuda
