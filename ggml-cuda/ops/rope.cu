// rope: rotates pairs of columns of every head in place. A block rotates some heads of one token: its threads first
// compute the token's cosines and sines into shared memory (n_rot / 2 of each, double precision for the angle only),
// then rotate pair after pair. Reads and writes n * n_head * n_rot floats.
#include <numbers>

#include "ggml-cuda/ops/rope_angle.h"
#include "ggml-cuda/ops/rows.cuh"
#include "gguf/quants.h"
#include "graph/rope_frequencies.h"

namespace tandem::cuda {
namespace {

constexpr int kMaxPairs = 256;
constexpr int kHeadsPerBlock = 8;

// Passed by value: a captured graph carries it, and nothing is allocated.
struct RopeTable {
  double turns_per_position[kMaxPairs];
  float magnitude;
};

template <RopeStyle kStyle>
__global__ void rotate(float* x, const int32_t* positions, const __grid_constant__ RopeTable table, int n_head,
                       int head_dim, int n_pairs) {
  __shared__ float2 rotation[kMaxPairs];  // cosine, sine
  const int32_t position = positions[blockIdx.x];
  for (int i = threadIdx.x; i < n_pairs; i += blockDim.x) {
    float sine, cosine;
    sincospif(2.0f * fraction_of_turn(table.turns_per_position[i], position), &sine, &cosine);
    rotation[i] = {table.magnitude * cosine, table.magnitude * sine};
  }
  __syncthreads();

  const int first = blockIdx.y * kHeadsPerBlock;
  const int n_here = min(kHeadsPerBlock, n_head - first);
  float* heads = x + (static_cast<int64_t>(blockIdx.x) * n_head + first) * head_dim;
  for (int i = threadIdx.x; i < n_here * n_pairs; i += blockDim.x) {
    const int head = i / n_pairs, pair = i % n_pairs;
    float* a = heads + head * head_dim + (kStyle == RopeStyle::pair ? 2 * pair : pair);
    float* b = a + (kStyle == RopeStyle::pair ? 1 : n_pairs);
    const float2 r = rotation[pair];
    const float p = *a, q = *b;
    *a = p * r.x - q * r.y;
    *b = p * r.y + q * r.x;
  }
}

// A small weight, read from the mapped file.
std::vector<float> weight_floats(const CompileContext& context, TensorId id) {
  if (id == kNoTensor) return {};
  const Weight& weight = *context.tensor(id).weight;
  std::vector<float> floats(static_cast<size_t>(weight.n_cols));
  dequantize_row(weight.dtype, weight.data, floats.data(), weight.n_cols);
  return floats;
}

class RopeStep final : public Step {
 public:
  RopeStep(const CompileContext& context, const Node& node)
      : op_(std::get<RopeOp>(node.op)),
        x_(context.address<float>(node.inputs[0])),
        positions_(context.address<const int32_t>(node.inputs[1])) {
    const std::vector<double> frequency = rope_frequencies(op_, weight_floats(context, node.inputs[2]));
    TANDEM_CHECK(frequency.size() <= kMaxPairs);
    for (size_t i = 0; i < frequency.size(); ++i) {
      table_.turns_per_position[i] = frequency[i] / (2 * std::numbers::pi);
    }
    table_.magnitude = rope_magnitude(op_);
  }

  void launch(const LaunchContext& context) const override {
    const dim3 grid(static_cast<unsigned>(context.shape.n_tokens), blocks_of(op_.n_head, kHeadsPerBlock));
    const auto kernel = op_.style == RopeStyle::pair ? rotate<RopeStyle::pair> : rotate<RopeStyle::half>;
    kernel<<<grid, 256, 0, context.stream>>>(x_, positions_, table_, static_cast<int>(op_.n_head),
                                             static_cast<int>(op_.head_dim), static_cast<int>(op_.n_rot / 2));
    check_launch("rotate");
  }

 private:
  RopeOp op_;
  float* x_;                  // [n_tokens, n_head * head_dim]
  const int32_t* positions_;  // [n_tokens]
  RopeTable table_{};
};

}  // namespace

std::string why_not_rope(const Graph&, const Node& node) {
  const int64_t n_rot = std::get<RopeOp>(node.op).n_rot;
  if (n_rot <= 2 * kMaxPairs) return "";
  return format("heads rotate %lld columns, %d are the most here", static_cast<long long>(n_rot), 2 * kMaxPairs);
}

StepPtr compile_rope(const CompileContext& context, const Node& node) {
  return std::make_unique<RopeStep>(context, node);
}

}  // namespace tandem::cuda
