// delta_rule: the gated delta rule of a recurrent layer, as a rule for the kernels of recurrent.cuh and
// recurrent_chunks.cuh. A single token takes two sums over the lanes for each column, and two more for the lengths of q
// and k.
#include "ggml-cuda/ops/recurrent_chunks.cuh"

namespace tandem::cuda {
namespace {

struct DeltaRule {
  static constexpr bool kCorrects = true;  // what a token adds to the state depends on the state
  const float *beta, *alpha;               // [n, n_head]
  const float *decay, *dt_bias;            // [n_head]

  struct Gates {
    float decay, in;  // the factors of the old state and of the correction
  };
  // The gates of a head; `at` is [n, n_head].
  __device__ auto gates(int head) const {
    return [this, rate = decay[head], bias = dt_bias[head]](int64_t at) {
      return Gates{expf(rate * softplus(alpha[at] + bias)), 1.0f / (1.0f + expf(-beta[at]))};
    };
  }
  __device__ float skip(int) const { return 0.0f; }
  // Factors of k and q of given squares, which make their lengths 1 and 1 / sqrt(dk).
  __device__ static float k_scale(float square) { return rsqrtf(square + kDeltaRuleEps); }
  __device__ static float q_scale(float square, int dk) {
    return rsqrtf(square + kDeltaRuleEps) * rsqrtf(static_cast<float>(dk));
  }

  template <int kRows>
  __device__ static void take_token(Gates g, int dk, const float (&q)[kRows], const float (&k)[kRows],
                                    const float (&v)[kStateColumns], float (&state)[kRows][kStateColumns],
                                    float (&y)[kStateColumns]) {
    float q_square = 0.0f, k_square = 0.0f;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      q_square += q[r] * q[r];
      k_square += k[r] * k[r];
    }
    const float scale_q = q_scale(warp_sum(q_square), dk), scale_k = k_scale(warp_sum(k_square));
#pragma unroll
    for (int c = 0; c < kStateColumns; ++c) {
      float known = 0.0f;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        state[r][c] *= g.decay;
        known += state[r][c] * k[r];
      }
      known = warp_sum(known) * scale_k;
      const float correction = (v[c] - known) * g.in * scale_k;
      y[c] = 0.0f;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        state[r][c] += k[r] * correction;
        y[c] += state[r][c] * q[r];
      }
      y[c] = warp_sum(y[c]) * scale_q;
    }
  }
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const DeltaRuleOp& op) {
  const KvLayer& kv = context.segment.kv[node.layer];
  TANDEM_CHECK(kv.head_dim_v == op.n_head_v * op.head_dim_k * op.head_dim_v);
  RecurrentCall call{};
  call.rows = context.address<const float>(op.qkv);
  call.row_size = op.n_qkv();
  call.q_at = 0;
  call.k_at = static_cast<int>(op.n_head_k * op.head_dim_k);
  call.v_at = 2 * call.k_at;
  call.y = context.address<float>(node.output);
  call.pool = reinterpret_cast<float*>(kv.v);
  call.tokens = step_tokens(context, op);
  call.n_head_k = static_cast<int>(op.n_head_k);
  call.n_head = static_cast<int>(op.n_head_v);
  call.dk = static_cast<int>(op.head_dim_k);
  call.dv = static_cast<int>(op.head_dim_v);
  call.tiled = op.order == HeadOrder::tiled;
  const DeltaRule rule{context.address<const float>(op.beta), context.address<const float>(op.alpha),
                       context.address<const float>(op.decay), context.address<const float>(op.dt_bias)};
  return compile_recurrent(context, call, rule, context.tensor(op.qkv).n_rows,
                           context.tensor(op.states).n_rows);
}

std::string why_not(const Graph&, const DeltaRuleOp& op) {
  if (op.head_dim_k <= kMaxStateRows) return "";
  return "keys of " + std::to_string(op.head_dim_k) + " elements, at most " + std::to_string(kMaxStateRows);
}

}  // namespace tandem::cuda
