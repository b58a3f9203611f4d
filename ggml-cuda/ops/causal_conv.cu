// causal_conv: the short convolution of a recurrent layer. One thread per token and channel reads the `width`
// newest inputs of its sequence, from x or, before its first token, from the state; the thread of a sequence's
// last token also writes the new state, into another slot. Reads and writes n * c floats; what neighbouring
// tokens read again comes from L2.
#include "ggml-cuda/ops/rows.cuh"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 128;

struct ConvCall {
  const float* x;            // [n, n_channels]
  const float* w;            // [n_channels, width]
  const float* bias;         // [n_channels] or null
  float* y;                  // [n, n_channels]
  float* pool;               // [n_slots, width - 1, n_channels]
  const int32_t* positions;  // [n]
  const int32_t* sequences;  // [n]
  const int32_t* states;     // [n_sequences, 2]
  int n, n_channels, width;
  bool is_silu;
};

// The grid's x is the channels, its y the token.
__global__ void __launch_bounds__(kThreads) causal_conv(const __grid_constant__ ConvCall call) {
  let_next_begin();
  wait_for_previous();
  const int channel = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int token = static_cast<int>(blockIdx.y), last = call.width - 1;
  if (channel >= call.n_channels) return;
  const int sequence = call.sequences[token];
  int n_before = 0;  // tokens of the sequence in this step before this one, as far as it matters
  while (n_before < last && token > n_before && call.sequences[token - n_before - 1] == sequence) ++n_before;
  const bool is_start = call.positions[token - n_before] == 0;
  const int64_t slot_size = static_cast<int64_t>(last) * call.n_channels;
  const float* old = call.pool + call.states[2 * sequence] * slot_size + channel;
  // The input `lag` tokens before this one.
  const auto input = [&](int lag) {
    if (lag <= n_before) return call.x[static_cast<int64_t>(token - lag) * call.n_channels + channel];
    return is_start ? 0.0f : old[static_cast<int64_t>(last - (lag - n_before)) * call.n_channels];
  };
  float sum = call.bias ? call.bias[channel] : 0.0f;
  for (int j = 0; j < call.width; ++j) {
    sum += call.w[static_cast<int64_t>(channel) * call.width + j] * input(last - j);
  }
  call.y[static_cast<int64_t>(token) * call.n_channels + channel] =
      call.is_silu ? sum / (1.0f + expf(-sum)) : sum;
  if (token + 1 < call.n && call.sequences[token + 1] == sequence) return;
  float* state = call.pool + call.states[2 * sequence + 1] * slot_size + channel;
  for (int j = 0; j < last; ++j) state[static_cast<int64_t>(j) * call.n_channels] = input(last - 1 - j);
}

class CompiledCausalConv final : public CompiledOp {
 public:
  CompiledCausalConv(const CompileContext& context, const Node& node, const CausalConvOp& op) {
    const KvLayer& kv = context.segment.kv[node.layer];
    call_.n_channels = static_cast<int>(context.tensor(op.x).n_cols);
    call_.width = static_cast<int>(context.tensor(op.weight).n_cols);
    TANDEM_CHECK(kv.head_dim_k == static_cast<int64_t>(call_.width - 1) * call_.n_channels);
    call_.x = context.address<const float>(op.x);
    call_.w = context.address<const float>(op.weight);
    call_.bias = context.address<const float>(op.bias);
    call_.is_silu = op.activation == ConvActivation::silu;
    call_.y = context.address<float>(node.output);
    call_.pool = reinterpret_cast<float*>(kv.k);
    call_.positions = context.address<const int32_t>(op.positions);
    call_.sequences = context.address<const int32_t>(op.sequences);
    call_.states = context.address<const int32_t>(op.states);
  }

  void launch(const LaunchContext& context) const override {
    ConvCall call = call_;
    call.n = static_cast<int>(context.shape.n_tokens);
    const dim3 grid(blocks_of(call.n_channels, kThreads), static_cast<unsigned>(call.n));
    launch_overlapping(causal_conv, grid, kThreads, 0, context.stream, call);
  }

 private:
  ConvCall call_{};
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const CausalConvOp& op) {
  return std::make_unique<CompiledCausalConv>(context, node, op);
}

}  // namespace tandem::cuda
