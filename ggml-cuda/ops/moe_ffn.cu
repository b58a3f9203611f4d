// moe_ffn: runs every token through the few experts that it is routed to; the kernels read the route on the
// device.
//
// Up to eight tokens, and experts of floats or without kernels of their own: every (token, expert) pair by
// itself, with the kernels of matvec.h: gate and up together, then the weighted sum of the down products. The
// chosen experts' weights are read once per token.
//
// More tokens: pairs are sorted by expert, and products work on tiles of pairs of one expert (matmul.h). Only
// the device knows the tiles: the grid covers the maximum number. The chosen experts' weights are read once.
//
// Pairs with a negative id are left out.
#include "ggml-cuda/expert_groups.h"
#include "ggml-cuda/ops/rows.cuh"
#include "ggml-cuda/products.cuh"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kGroupThreads = 1024;
constexpr int64_t kMaxGroupedTokens = 1024;  // at once: bounds the scratch for the pairs' results

// route [n, 2 * n_used] -> tiles, n_tiles, row_of [pairs] the token of each sorted pair, sorted_at [n,
// n_used], -1 for a pair that the route leaves out. One block. The order of an expert's pairs may differ from run to run; the results do not depend on
// it. About 10 us for 4096 pairs.
__global__ void __launch_bounds__(kGroupThreads)
    group_kernel(const float* route, int n, int n_used, int n_expert, int tile_tokens, TokenTile* tiles,
                 int* n_tiles, int* row_of, int* sorted_at) {
  extern __shared__ int counts[];  // [n_expert], then firsts [n_expert]
  int* firsts = counts + n_expert;
  const int n_slots = n * n_used;
  for (int e = threadIdx.x; e < n_expert; e += kGroupThreads) counts[e] = 0;
  __syncthreads();
  const auto expert_of = [&](int slot) {
    return __float_as_int(route[static_cast<int64_t>(slot / n_used) * 2 * n_used + slot % n_used]);
  };
  for (int s = threadIdx.x; s < n_slots; s += kGroupThreads) {
    if (expert_of(s) >= 0) atomicAdd(&counts[expert_of(s)], 1);
  }
  __syncthreads();
  if (threadIdx.x == 0) *n_tiles = make_tiles(counts, n_expert, tile_tokens, firsts, tiles);
  __syncthreads();
  for (int s = threadIdx.x; s < n_slots; s += kGroupThreads) {
    sorted_at[s] = -1;
    if (expert_of(s) < 0) continue;
    const int at = atomicAdd(&firsts[expert_of(s)], 1);
    row_of[at] = s / n_used;
    sorted_at[s] = at;
  }
}

// y [n, k] = residual + sum over a token's pairs of weight * z. z [pairs, k] in sorted order. The grid's y is
// the token. Bytes: 4 n k (n_used + 2).
__global__ void __launch_bounds__(kThreads)
    sum_kernel(const float* z, const float* route, const int* sorted_at, const float* residual, float* y,
               int n_used, int k) {
  const int64_t token = blockIdx.x;
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (column >= k) return;
  float sum = residual ? residual[token * k + column] : 0.0f;
  for (int i = 0; i < n_used; ++i) {
    if (sorted_at[token * n_used + i] < 0) continue;
    sum += route[token * 2 * n_used + n_used + i] *
           z[static_cast<int64_t>(sorted_at[token * n_used + i]) * k + column];
  }
  y[token * k + column] = sum;
}

// Of experts without gates: the square of what is positive.
struct Relu2 {
  __device__ float operator()(float x, float) const { return x < 0.0f ? 0.0f : x * x; }
};

class CompiledMoeFfn final : public CompiledOp {
 public:
  CompiledMoeFfn(const CompileContext& context, const Node& node, const MoeFfnOp& op,
                 ScratchLayout scratch = {})
      : op_(op),
        gpu_(context.gpu),
        output_(context.tensor(node.output)),
        x_(context.address(op.x)),
        route_(context.address(op.route)),
        has_gate_(op.gate != kNoTensor),
        down_(device_weight(context, op.down)),
        gate_(gate_of(context, op, down_.k)),
        up_(up_of(context, op, down_.k)),
        residual_(context.address(op.residual)),
        gate_bias_(context.address(op.gate_bias)),
        up_bias_(context.address(op.up_bias)),
        down_bias_(context.address(op.down_bias)),
        gate_factors_(context.address(op.gate_factors)),
        y_(context.address(node.output)),
        max_n_(std::min(kMaxGroupedTokens, output_.n_rows)),
        max_slots_(max_n_ * op_.n_used),
        x_encodings_(gate_.k, max_n_, {gate_.dtype, up_.dtype}, scratch),
        h_encodings_(down_.k, max_slots_, {down_.dtype}, scratch) {
    TANDEM_CHECK(gate_.m == up_.m && gate_.k == up_.k && down_.k == gate_.m && down_.m == gate_.k);
    h_at_ = scratch.take(sizeof(float) * static_cast<size_t>(max_slots_ * gate_.m));
    if (gate_.dtype != up_.dtype)
      up_at_ = scratch.take(sizeof(float) * static_cast<size_t>(max_slots_ * gate_.m));
    if (groups(max_n_)) {
      z_at_ = scratch.take(sizeof(float) * static_cast<size_t>(max_slots_ * down_.m));
      tiles_at_ = scratch.take(sizeof(TokenTile) *
                               static_cast<size_t>(max_token_tiles(max_slots_, op_.n_expert, 32)));
      n_tiles_at_ = scratch.take(sizeof(int));
      row_of_at_ = scratch.take(sizeof(int) * static_cast<size_t>(max_slots_));
      sorted_at_at_ = scratch.take(sizeof(int) * static_cast<size_t>(max_slots_));
    }
    scratch_bytes = scratch.n_bytes();
  }

  void launch(const LaunchContext& context) const override {
    const int64_t n = row_count(output_, context.shape);
    for (int64_t t = 0; t < n; t += max_n_) {
      const int64_t count = std::min(max_n_, n - t);
      Part part;
      part.n = static_cast<int>(count);
      part.x = x_ + t * gate_.k;
      part.route = route_ + t * 2 * op_.n_used;
      part.residual = residual_ ? residual_ + t * down_.m : nullptr;
      part.y = y_ + t * down_.m;
      part.h = reinterpret_cast<float*>(context.scratch + h_at_);
      groups(count) ? launch_grouped(part, context) : launch_slots(part, context);
    }
  }

 private:
  // Some of the step's tokens.
  struct Part {
    int n;
    const float* x;         // [n, k]
    const float* route;     // [n, 2 * n_used]
    const float* residual;  // [n, k] or null
    float* y;               // [n, k]
    float* h;               // [n * n_used, m], by pair, or sorted
  };

  static bool is_one_matrix(const MoeFfnOp& op) { return op.up == kNoTensor; }
  static DeviceWeight gate_of(const CompileContext& context, const MoeFfnOp& op, int64_t m) {
    if (op.gate == kNoTensor) return device_weight(context, op.up);
    const DeviceWeight w = device_weight(context, op.gate);
    return is_one_matrix(op) ? rows_of(w, 0, m) : w;
  }
  static DeviceWeight up_of(const CompileContext& context, const MoeFfnOp& op, int64_t m) {
    return is_one_matrix(op) ? rows_of(device_weight(context, op.gate), m, m) : device_weight(context, op.up);
  }

  bool groups(int64_t n) const {
    return n > kMaxMatvecTokens && has_planes(gate_.dtype) && has_planes(up_.dtype) &&
           has_planes(down_.dtype);
  }

  void launch_slots(const Part& part, const LaunchContext& context) const {
    const int n_slots = part.n * static_cast<int>(op_.n_used);
    MatvecArgs args;
    args.input = x_encodings_.encode(part.x, part.n, context.scratch, context.stream);
    args.route = part.route;
    args.n = part.n;
    args.n_used = static_cast<int>(op_.n_used);
    args.activation = op_.activation;
    args.targets[0] = {gate_, nullptr, nullptr, part.h, 0, has_gate_ ? gate_bias_ : up_bias_, gate_factors_};
    if (!has_gate_) {
      args.n_targets = 1;
      args.mode = MatvecMode::experts;
      launch_expert_matvec(args, gpu_, context.stream);
      launch_map(context, Relu2{}, part.h, nullptr, part.h, int64_t{n_slots} * up_.m);
    } else if (gate_.dtype == up_.dtype) {
      args.targets[1] = {up_, nullptr, nullptr, nullptr, 0, up_bias_};
      args.n_targets = 2;
      args.mode = MatvecMode::experts_glu;
      launch_expert_matvec(args, gpu_, context.stream);
    } else {
      float* up = reinterpret_cast<float*>(context.scratch + up_at_);
      args.n_targets = 1;
      args.mode = MatvecMode::experts;
      launch_expert_matvec(args, gpu_, context.stream);
      args.targets[0] = {up_, nullptr, nullptr, up, 0, up_bias_};
      launch_expert_matvec(args, gpu_, context.stream);
      combine_glu(op_.activation, part.h, up, part.h, int64_t{n_slots} * gate_.m, context.stream);
    }
    args.targets[0] = {down_, nullptr, part.residual, part.y, 0, down_bias_};
    args.n_targets = 1;
    args.input = h_encodings_.encode(part.h, n_slots, context.scratch, context.stream);
    args.mode = MatvecMode::experts_down;
    launch_expert_matvec(args, gpu_, context.stream);
  }

  void launch_grouped(const Part& part, const LaunchContext& context) const {
    const int n_used = static_cast<int>(op_.n_used), n_expert = static_cast<int>(op_.n_expert);
    const int n_slots = part.n * n_used;
    const int tile_tokens = n_slots <= 32 * n_expert ? 32 : 64;
    const auto max_tiles = static_cast<int>(max_token_tiles(n_slots, n_expert, tile_tokens));
    auto* tiles = reinterpret_cast<TokenTile*>(context.scratch + tiles_at_);
    int* n_tiles = reinterpret_cast<int*>(context.scratch + n_tiles_at_);
    int* row_of = reinterpret_cast<int*>(context.scratch + row_of_at_);
    int* sorted_at = reinterpret_cast<int*>(context.scratch + sorted_at_at_);
    group_kernel<<<1, kGroupThreads, 2 * sizeof(int) * static_cast<size_t>(n_expert), context.stream>>>(
        part.route, part.n, n_used, n_expert, tile_tokens, tiles, n_tiles, row_of, sorted_at);
    check_launch("group_kernel");

    const auto product = [&](const DeviceWeight& w, const float* bias, const ProductInput& input, float* to,
                             MatmulStore store) {
      MatmulArgs args;
      args.w = w;
      args.bias = bias;
      args.factors = &w == &gate_ && has_gate_ ? gate_factors_ : nullptr;
      args.x = input.encoded[static_cast<int>(encoding_of(w.dtype))];
      args.y = to;
      args.n = n_slots;
      args.store = store;
      args.activation = op_.activation;
      args.tiles = tiles;
      args.n_tiles = n_tiles;
      args.row_of = &w == &down_ ? nullptr : row_of;  // h is sorted already
      launch_grouped_matmul(args, tile_tokens, max_tiles, gpu_, context.stream);
    };
    float* z = reinterpret_cast<float*>(context.scratch + z_at_);
    const ProductInput x = x_encodings_.encode(part.x, part.n, context.scratch, context.stream);
    if (has_gate_) product(gate_, gate_bias_, x, part.h, MatmulStore::result);
    product(up_, up_bias_, x, part.h, has_gate_ ? MatmulStore::with_gate : MatmulStore::result);
    if (!has_gate_) launch_map(context, Relu2{}, part.h, nullptr, part.h, int64_t{n_slots} * up_.m);
    product(down_, down_bias_, h_encodings_.encode(part.h, n_slots, context.scratch, context.stream), z,
            MatmulStore::result);
    const dim3 grid(static_cast<unsigned>(part.n),
                    static_cast<unsigned>((down_.m + kThreads - 1) / kThreads));
    sum_kernel<<<grid, kThreads, 0, context.stream>>>(z, part.route, sorted_at, part.residual, part.y, n_used,
                                                      down_.m);
    check_launch("sum_kernel");
  }

  MoeFfnOp op_;
  Gpu gpu_;
  const Tensor& output_;
  const float* x_;      // [n, k]
  const float* route_;  // [n, 2 * n_used]
  bool has_gate_;
  DeviceWeight down_;  // [n_expert, k, m]
  DeviceWeight gate_,
      up_;  // [n_expert, m, k]; rows of one weight if the op has no up; the same if it has no gate
  const float* residual_;              // [n, k] or null
  const float *gate_bias_, *up_bias_;  // [n_expert, m] or null
  const float* down_bias_;             // [n_expert, k] or null
  const float* gate_factors_;          // [n_expert] or null
  float* y_;                           // [n, k]
  int64_t max_n_, max_slots_;
  InputEncodings x_encodings_, h_encodings_;
  size_t h_at_ = 0, up_at_ = 0, z_at_ = 0;
  size_t tiles_at_ = 0, n_tiles_at_ = 0, row_of_at_ = 0, sorted_at_at_ = 0;
};

}  // namespace

std::string why_not(const Graph& graph, const MoeFfnOp& op) {
  for (const TensorId weight : {op.gate, op.up, op.down}) {
    if (weight == kNoTensor) continue;
    if (std::string why = why_not_weight(graph, weight); !why.empty()) return why;
  }
  for (const TensorId bias : {op.gate_bias, op.up_bias, op.down_bias, op.gate_factors}) {
    if (std::string why = why_not_bias(graph, bias); !why.empty()) return why;
  }
  return op.n_expert > 4096 ? std::to_string(op.n_expert) + " experts" : "";  // counted in shared memory
}

CompiledOpPtr compile(const CompileContext& context, const Node& node, const MoeFfnOp& op) {
  return std::make_unique<CompiledMoeFfn>(context, node, op);
}

}  // namespace tandem::cuda
