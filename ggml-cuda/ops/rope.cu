// rope: rotates pairs of columns of every head in place. A block rotates eight heads of one token. Reads and
// writes n * n_head * n_rot floats.
#include "ggml-cuda/ops/rotation.cuh"

namespace tandem::cuda {
namespace {

template <RopeStyle kStyle>
__global__ void __launch_bounds__(kRotationThreads)
    rope(float* x, const int32_t* positions, const __grid_constant__ RopeTable table, int n_head,
         int head_dim, int n_pairs) {
  __shared__ float2 rotation[kMaxPairs];
  let_next_begin();
  compute_rotations(table, positions[blockIdx.x], n_pairs, rotation);
  wait_for_previous();
  const int first = blockIdx.y * kHeadsPerBlock;
  float* heads = x + (static_cast<int64_t>(blockIdx.x) * n_head + first) * head_dim;
  rotate_heads<kStyle>(heads, min(kHeadsPerBlock, n_head - first), head_dim, n_pairs, rotation);
}

class CompiledRope final : public CompiledOp {
 public:
  CompiledRope(const CompileContext& context, const RopeOp& op)
      : op_(op),
        x_(context.address<float>(op.x)),
        positions_(context.address<const int32_t>(op.positions)),
        table_(rope_table(context, op)) {}

  void launch(const LaunchContext& context) const override {
    const dim3 grid(static_cast<unsigned>(context.shape.n_tokens), blocks_of(op_.n_head, kHeadsPerBlock));
    launch_overlapping(op_.style == RopeStyle::pair ? rope<RopeStyle::pair> : rope<RopeStyle::half>, grid,
                       kRotationThreads, 0, context.stream, x_ + op_.first, positions_, table_,
                       static_cast<int>(op_.n_head), static_cast<int>(op_.head_dim),
                       static_cast<int>(op_.n_rot / 2));
  }

 private:
  RopeOp op_;
  float* x_;                  // [n_tokens, n_head * head_dim]
  const int32_t* positions_;  // [n_tokens]
  RopeTable table_;
};

}  // namespace

std::string why_not(const Graph&, const RopeOp& op) {
  if (op.n_rot <= 2 * kMaxPairs) return "";
  return format("heads rotate {} columns, {} are the most here", op.n_rot, 2 * kMaxPairs);
}

CompiledOpPtr compile(const CompileContext& context, const Node&, const RopeOp& op) {
  return std::make_unique<CompiledRope>(context, op);
}

}  // namespace tandem::cuda
