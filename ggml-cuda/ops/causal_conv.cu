// causal_conv: the short convolution of a recurrent layer. One thread per token and channel reads the `width`
// newest inputs of its sequence from x. The first width - 1 tokens of a sequence, whose inputs are partly in the state, are all
// of its first token's thread, which then writes the new state: into another slot, or into the one that it has read.
// Reads and writes n * c floats; what neighbouring tokens read again comes from L2.
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

constexpr int kMaxWidth = 16;

// The token behind the last one of the sequence that has this token.
__device__ int end_of_sequence(const ConvCall& call, int token) {
  int low = token + 1, high = call.n;  // ascending: the first whose sequence is another
  while (low < high) {
    const int middle = (low + high) / 2;
    if (call.sequences[middle] == call.sequences[token]) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

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
  const auto x_at = [&](int t) { return call.x[static_cast<int64_t>(t) * call.n_channels + channel]; };
  const auto w_at = [&](int j) { return call.w[static_cast<int64_t>(channel) * call.width + j]; };
  const float bias = call.bias ? call.bias[channel] : 0.0f;
  const auto put = [&](int t, float sum) {
    call.y[static_cast<int64_t>(t) * call.n_channels + channel] =
        call.is_silu ? sum / (1.0f + expf(-sum)) : sum;
  };
  if (n_before == last) {
    float sum = bias;
    for (int j = 0; j < call.width; ++j) sum += w_at(j) * x_at(token - last + j);
    return put(token, sum);
  }
  if (n_before > 0) return;  // the first token's thread has it
  const int end = end_of_sequence(call, token);
  const bool is_start = call.positions[token] == 0;
  const int64_t slot_size = static_cast<int64_t>(last) * call.n_channels;
  const float* old = call.pool + call.states[2 * sequence] * slot_size + channel;
  float before[kMaxWidth];  // the inputs before the first token
  for (int j = 0; j < last; ++j) {
    before[j] = is_start ? 0.0f : old[static_cast<int64_t>(j) * call.n_channels];
  }
  const auto input = [&](int t) { return t >= token ? x_at(t) : before[last - (token - t)]; };
  for (int t = token; t < min(end, token + last); ++t) {
    float sum = bias;
    for (int j = 0; j < call.width; ++j) sum += w_at(j) * input(t - last + j);
    put(t, sum);
  }
  float* state = call.pool + call.states[2 * sequence + 1] * slot_size + channel;
  for (int j = 0; j < last; ++j) state[static_cast<int64_t>(j) * call.n_channels] = input(end - last + j);
}

class CompiledCausalConv final : public CompiledOp {
 public:
  CompiledCausalConv(const CompileContext& context, const Node& node, const CausalConvOp& op) {
    const KvLayer& kv = context.segment.kv[node.layer];
    call_.n_channels = static_cast<int>(context.tensor(op.x).n_cols);
    call_.width = static_cast<int>(context.tensor(op.weight).n_cols);
    TANDEM_CHECK(call_.width <= kMaxWidth);
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
