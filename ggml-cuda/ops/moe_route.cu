// moe_route: chooses each token's experts and their weights. One warp per token: its scores are in shared
// memory, and the best are taken one by one. Reads n * E floats, writes n * 2 * n_used; about n_used * E / 32
// comparisons per lane.
#include "ggml-cuda/ops/rows.cuh"

namespace tandem::cuda {
namespace {

constexpr int kWarps = 4;  // tokens per block
constexpr int64_t kMaxExperts = 1024, kMaxGroups = 128;

struct MoeRouteCall {
  const float* logits;       // [n_tokens, n_expert]
  PlainValues bias;          // [n_expert], or null
  PlainValues expert_scale;  // the same
  float* route;              // [n_tokens, 2 * n_used]
  int n_tokens, n_expert, n_used;
  int first, n_here;  // as in MoeRouteOp
  int n_group, n_group_used;
  MoeScoring scoring;
  MoeGroupRank group_rank;
  bool normalize;
  float scale;
};

struct Best {
  float choice;
  int expert;
};

// NaN marks an expert that was taken; nothing else is NaN by then.
__device__ bool better(Best a, Best b) {
  return a.choice > b.choice || (a.choice == b.choice && a.expert < b.expert);
}

__device__ Best best_of_warp(const float* choice, int n_expert, int lane) {
  Best best{-INFINITY, INT_MAX};
  for (int e = lane; e < n_expert; e += kWarp) {
    const Best candidate{choice[e], e};
    if (better(candidate, best)) best = candidate;
  }
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    const Best other{__shfl_xor_sync(kAllLanes, best.choice, mask),
                     __shfl_xor_sync(kAllLanes, best.expert, mask)};
    if (better(other, best)) best = other;
  }
  return best;
}

__device__ void compute_scores(const MoeRouteCall& call, const float* logits, float* score, int lane) {
  if (call.scoring == MoeScoring::sigmoid) {
    for (int e = lane; e < call.n_expert; e += kWarp) score[e] = 1.0f / (1.0f + expf(-logits[e]));
    return;
  }
  float max = -INFINITY, sum = 0.0f;
  for (int e = lane; e < call.n_expert; e += kWarp) max = fmaxf(max, logits[e]);
  max = warp_max(max);
  for (int e = lane; e < call.n_expert; e += kWarp) sum += score[e] = expf(logits[e] - max);
  sum = warp_sum(sum);
  for (int e = lane; e < call.n_expert; e += kWarp) score[e] /= sum;
}

// A group's best choice, or the sum of its two best.
__device__ float group_value(const float* choice, int size, MoeGroupRank rank) {
  float first = -INFINITY, second = -INFINITY;
  for (int i = 0; i < size; ++i) {
    const float c = choice[i];
    if (c > first) {
      second = first;
      first = c;
    } else if (c > second) {
      second = c;
    }
  }
  return size > 1 && rank == MoeGroupRank::two_best ? first + second : first;
}

// Keeps the n_group_used groups of greatest value; of equal ones, the first.
__device__ void rule_out_groups(const MoeRouteCall& call, float* choice, float* value, int lane) {
  const int size = call.n_expert / call.n_group;
  for (int g = lane; g < call.n_group; g += kWarp)
    value[g] = group_value(choice + g * size, size, call.group_rank);
  __syncwarp();
  for (int g = lane; g < call.n_group; g += kWarp) {
    int n_better = 0;
    for (int h = 0; h < call.n_group; ++h) n_better += value[h] > value[g] || (value[h] == value[g] && h < g);
    if (n_better < call.n_group_used) continue;
    for (int i = 0; i < size; ++i) choice[g * size + i] = -INFINITY;
  }
  __syncwarp();
}

// Shared memory per warp: score[n_expert], choice[n_expert], value[n_group].
__global__ void __launch_bounds__(kWarps* kWarp) moe_route(MoeRouteCall call) {
  extern __shared__ float shared[];
  let_next_begin();
  wait_for_previous();
  const int lane = threadIdx.x % kWarp;
  const int token = blockIdx.x * kWarps + threadIdx.x / kWarp;
  if (token >= call.n_tokens) return;
  float* score = shared + threadIdx.x / kWarp * (2 * call.n_expert + call.n_group);
  float* choice = score + call.n_expert;
  compute_scores(call, call.logits + static_cast<int64_t>(token) * call.n_expert, score, lane);
  for (int e = lane; e < call.n_expert; e += kWarp) {
    const float c = score[e] + (call.bias.data ? call.bias[e] : 0.0f);
    choice[e] = c == c ? c : -INFINITY;
  }
  __syncwarp();
  if (call.n_group > 1) rule_out_groups(call, choice, choice + call.n_expert, lane);

  float* ids = call.route + static_cast<int64_t>(token) * 2 * call.n_used;
  float* weights = ids + call.n_used;
  float sum = 0.0f;
  for (int i = 0; i < call.n_used; ++i) {
    const int expert = best_of_warp(choice, call.n_expert, lane).expert;
    sum += score[expert];
    if (lane == i % kWarp) {
      ids[i] = __int_as_float(expert);
      weights[i] = score[expert];
    }
    __syncwarp();
    if (lane == 0) choice[expert] = NAN;
    __syncwarp();
  }
  const float factor = call.normalize ? call.scale / sum : call.scale;
  for (int i = lane; i < call.n_used; i += kWarp) {
    const float own = call.expert_scale.data ? call.expert_scale[__float_as_int(ids[i])] : 1.0f;
    weights[i] *= factor * own;
    if (call.n_here == 0) continue;
    const int here = __float_as_int(ids[i]) - call.first;
    ids[i] = __int_as_float(here >= 0 && here < call.n_here ? here : -1);
  }
}

class CompiledMoeRoute final : public CompiledOp {
 public:
  CompiledMoeRoute(const CompileContext& context, const Node& node, const MoeRouteOp& op)
      : op_(op), shape_(context.tensor(node.output)) {
    call_.logits = context.address<const float>(op.logits);
    call_.bias = plain_values(context, op.selection_bias);
    call_.expert_scale = plain_values(context, op.expert_scale);
    call_.route = context.address<float>(node.output);
    call_.n_expert = static_cast<int>(op_.n_expert);
    call_.n_used = static_cast<int>(op_.n_used);
    call_.n_group = static_cast<int>(op_.n_group);
    call_.n_group_used = static_cast<int>(op_.n_group_used);
    call_.scoring = op_.scoring;
    call_.group_rank = op_.group_rank;
    call_.normalize = op_.normalize;
    call_.scale = op_.scale;
    call_.first = static_cast<int>(op_.first);
    call_.n_here = static_cast<int>(op_.n_here);
  }

  void launch(const LaunchContext& context) const override {
    MoeRouteCall call = call_;
    call.n_tokens = static_cast<int>(row_count(shape_, context.shape));
    if (call.n_tokens == 0) return;
    const size_t shared = kWarps * static_cast<size_t>(2 * call.n_expert + call.n_group) * sizeof(float);
    launch_overlapping(moe_route, blocks_of(call.n_tokens, kWarps), kWarps * kWarp, shared, context.stream,
                       call);
  }

 private:
  MoeRouteOp op_;
  const Tensor& shape_;
  MoeRouteCall call_{};
};

}  // namespace

std::string why_not(const Graph& graph, const MoeRouteOp& op) {
  if (op.n_expert > kMaxExperts || op.n_group > kMaxGroups) {
    return format("{} experts in {} groups, {} in {} are the most here", op.n_expert, op.n_group, kMaxExperts,
                  kMaxGroups);
  }
  if (std::string why = why_not_plain(graph, op.expert_scale, "moe_route"); !why.empty()) return why;
  return why_not_plain(graph, op.selection_bias, "moe_route");
}

CompiledOpPtr compile(const CompileContext& context, const Node& node, const MoeRouteOp& op) {
  return std::make_unique<CompiledMoeRoute>(context, node, op);
}

}  // namespace tandem::cuda
