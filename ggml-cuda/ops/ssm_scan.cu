// ssm_scan: the state space of Mamba-2, as a rule for the kernels of recurrent.cuh and recurrent_chunks.cuh. A single token
// takes one sum over the lanes for each column.
#include "ggml-cuda/ops/recurrent_chunks.cuh"

namespace tandem::cuda {
namespace {

struct SsmScan {
  static constexpr bool kCorrects = false;
  const float* dt;                         // [n, n_head]
  const float *decay, *dt_bias, *skip_of;  // [n_head]

  struct Gates {
    float decay, in, skip;  // the factors of the old state, of x in the state, of x in y
  };
  // The gates of a head; `at` is [n, n_head].
  __device__ auto gates(int head) const {
    return [this, rate = decay[head], bias = dt_bias[head], through = skip_of[head]](int64_t at) {
      const float step = softplus(dt[at] + bias);
      return Gates{expf(rate * step), step, through};
    };
  }
  __device__ float skip(int head) const { return skip_of[head]; }
  __device__ static float k_scale(float) { return 1.0f; }
  __device__ static float q_scale(float, int) { return 1.0f; }

  template <int kRows>
  __device__ static void take_token(Gates g, int, const float (&q)[kRows], const float (&k)[kRows],
                                    const float (&v)[kStateColumns], float (&state)[kRows][kStateColumns],
                                    float (&y)[kStateColumns]) {
#pragma unroll
    for (int c = 0; c < kStateColumns; ++c) {
      y[c] = 0.0f;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        state[r][c] = g.decay * state[r][c] + k[r] * (g.in * v[c]);
        y[c] += state[r][c] * q[r];
      }
      y[c] = warp_sum(y[c]) + g.skip * v[c];
    }
  }
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const SsmScanOp& op) {
  const KvLayer& kv = context.segment.kv[node.layer];
  TANDEM_CHECK(kv.head_dim_v == op.n_inner() * op.n_state);
  RecurrentCall call{};
  call.rows = context.address<const float>(op.xbc);
  call.row_size = op.n_xbc();
  call.v_at = 0;
  call.k_at = static_cast<int>(op.n_inner());
  call.q_at = static_cast<int>(op.n_inner() + op.n_group * op.n_state);
  call.y = context.address<float>(node.output);
  call.pool = reinterpret_cast<float*>(kv.v);
  call.tokens = step_tokens(context, op);
  call.n_head_k = static_cast<int>(op.n_group);
  call.n_head = static_cast<int>(op.n_head);
  call.dk = static_cast<int>(op.n_state);
  call.dv = static_cast<int>(op.head_dim);
  const SsmScan rule{context.address<const float>(op.dt), context.address<const float>(op.decay),
                     context.address<const float>(op.dt_bias), context.address<const float>(op.skip)};
  return compile_recurrent(context, call, rule, context.tensor(op.xbc).n_rows,
                           context.tensor(op.states).n_rows);
}

std::string why_not(const Graph&, const SsmScanOp& op) {
  if (op.n_state <= kMaxStateRows) return "";
  return "states of " + std::to_string(op.n_state) + " rows, at most " + std::to_string(kMaxStateRows);
}

}  // namespace tandem::cuda
