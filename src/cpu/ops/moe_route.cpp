// moe_route: chooses each token's experts and their weights. A few hundred scores per token: plain code.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "cpu/ops/rows.h"

namespace tandem::cpu {
namespace {

class CompiledMoeRoute final : public CompiledOp {
 public:
  CompiledMoeRoute(const CompileContext& context, const Node& node, const MoeRouteOp& op)
      : op_(op),
        logits_(context.address(op.logits)),
        bias_(context.address(op.selection_bias)),
        expert_scale_(context.address(op.expert_scale)),
        route_(context.address(node.output)),
        extent_(context.tensor(node.output).extent) {
    scratch_bytes = static_cast<size_t>(op_.n_expert) * (2 * sizeof(float) + sizeof(int32_t)) +
                    static_cast<size_t>(op_.n_group) * (sizeof(float) + sizeof(int32_t));
  }

  void run(Worker& worker, const RunContext& context) const override {
    const int64_t n = row_count(extent_, 1, context.shape);
    for_each_row(worker, n, 64 * op_.n_expert, [&](int64_t token) { route(token, context.scratch); });
  }

 private:
  void route(int64_t token, std::byte* scratch) const {
    const int64_t n_expert = op_.n_expert;
    float* score = reinterpret_cast<float*>(scratch);  // [n_expert]
    float* choice = score + n_expert;                  // [n_expert] score + bias; -inf: excluded
    int32_t* order = reinterpret_cast<int32_t*>(choice + n_expert);  // [n_expert]
    scores(logits_ + token * n_expert, score);
    for (int64_t e = 0; e < n_expert; ++e) choice[e] = score[e] + (bias_ ? bias_[e] : 0.0f);
    if (op_.n_group > 1) rule_out_groups(choice, order + n_expert);

    // By descending choice; equal ones by ascending id. NaN compares equal to everything: keep it out of
    // sort.
    std::iota(order, order + n_expert, 0);
    for (int64_t e = 0; e < n_expert; ++e) {
      if (std::isnan(choice[e])) choice[e] = -INFINITY;
    }
    std::partial_sort(order, order + op_.n_used, order + n_expert, [&](int32_t a, int32_t b) {
      return choice[a] > choice[b] || (choice[a] == choice[b] && a < b);
    });

    float* ids = route_ + token * 2 * op_.n_used;
    float* weights = ids + op_.n_used;
    float sum = 0.0f;
    for (int64_t i = 0; i < op_.n_used; ++i) {
      ids[i] = std::bit_cast<float>(order[i]);
      weights[i] = score[order[i]];
      sum += weights[i];
    }
    const float factor = op_.normalize ? op_.scale / sum : op_.scale;
    for (int64_t i = 0; i < op_.n_used; ++i) {
      weights[i] *= factor * (expert_scale_ ? expert_scale_[order[i]] : 1.0f);
    }
  }

  void scores(const float* logits, float* score) const {
    const int64_t n_expert = op_.n_expert;
    if (op_.scoring == MoeScoring::sigmoid) {
      for (int64_t e = 0; e < n_expert; ++e) score[e] = 1.0f / (1.0f + std::exp(-logits[e]));
      return;
    }
    const float max = *std::max_element(logits, logits + n_expert);
    float sum = 0.0f;
    for (int64_t e = 0; e < n_expert; ++e) sum += score[e] = std::exp(logits[e] - max);
    for (int64_t e = 0; e < n_expert; ++e) score[e] /= sum;
  }

  // Keeps the n_group_used best groups, by their best choice or the sum of their two best.
  void rule_out_groups(float* choice, int32_t* group_room) const {
    const int64_t size = op_.n_expert / op_.n_group;
    int32_t* order = group_room;                                  // [n_group]
    float* best = reinterpret_cast<float*>(order + op_.n_group);  // [n_group]
    for (int64_t g = 0; g < op_.n_group; ++g) {
      float first = -INFINITY, second = -INFINITY;
      for (int64_t i = 0; i < size; ++i) {
        const float c = choice[g * size + i];
        if (c > first) {
          second = first;
          first = c;
        } else if (c > second) {
          second = c;
        }
      }
      best[g] = size > 1 && op_.group_rank == MoeGroupRank::two_best ? first + second : first;
      order[g] = static_cast<int32_t>(g);
    }
    std::sort(order, order + op_.n_group,
              [&](int32_t a, int32_t b) { return best[a] > best[b] || (best[a] == best[b] && a < b); });
    for (int64_t i = op_.n_group_used; i < op_.n_group; ++i) {
      std::fill_n(choice + order[i] * size, size, -INFINITY);
    }
  }

  MoeRouteOp op_;
  const float* logits_;        // [n, n_expert]
  const float* bias_;          // [n_expert] or null
  const float* expert_scale_;  // [n_expert] or null
  float* route_;               // [n, 2 * n_used]
  Extent extent_;
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const MoeRouteOp& op) {
  return std::make_unique<CompiledMoeRoute>(context, node, op);
}

}  // namespace tandem::cpu
