#include "device/expert_choice.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tandem {

size_t ExpertChoice::room_bytes(const MoeRouteParams& how) {
  return static_cast<size_t>(how.n_expert) * (2 * sizeof(float) + sizeof(int32_t)) +
         static_cast<size_t>(how.n_group) * (sizeof(float) + sizeof(int32_t));
}

ExpertChoice::ExpertChoice(const MoeRouteParams& how, std::byte* room)
    : how_(how),
      score_(reinterpret_cast<float*>(room)),
      choice_(score_ + how.n_expert),
      best_(choice_ + how.n_expert),
      order_(reinterpret_cast<int32_t*>(best_ + how.n_group)),
      group_order_(order_ + how.n_expert) {}

std::span<const int32_t> ExpertChoice::choose(const float* logits, const float* bias, int64_t n) {
  const int64_t n_expert = how_.n_expert;
  compute_scores(logits);
  for (int64_t e = 0; e < n_expert; ++e) choice_[e] = score_[e] + (bias ? bias[e] : 0.0f);
  if (how_.n_group > 1) rule_out_groups();
  // NaN compares equal to everything: keep it out of the sort.
  std::iota(order_, order_ + n_expert, 0);
  for (int64_t e = 0; e < n_expert; ++e) {
    if (std::isnan(choice_[e])) choice_[e] = -INFINITY;
  }
  std::partial_sort(order_, order_ + n, order_ + n_expert, [&](int32_t a, int32_t b) {
    return choice_[a] > choice_[b] || (choice_[a] == choice_[b] && a < b);
  });
  return {order_, static_cast<size_t>(n)};
}

void ExpertChoice::compute_scores(const float* logits) {
  const int64_t n_expert = how_.n_expert;
  if (how_.scoring == MoeScoring::sigmoid) {
    for (int64_t e = 0; e < n_expert; ++e) score_[e] = 1.0f / (1.0f + std::exp(-logits[e]));
    return;
  }
  const float max = *std::max_element(logits, logits + n_expert);
  float sum = 0.0f;
  for (int64_t e = 0; e < n_expert; ++e) sum += score_[e] = std::exp(logits[e] - max);
  for (int64_t e = 0; e < n_expert; ++e) score_[e] /= sum;
}

// Keeps the n_group_used best groups, by their best choice or the sum of their two best.
void ExpertChoice::rule_out_groups() {
  const int64_t size = how_.n_expert / how_.n_group;
  for (int64_t g = 0; g < how_.n_group; ++g) {
    float first = -INFINITY, second = -INFINITY;
    for (int64_t i = 0; i < size; ++i) {
      const float c = choice_[g * size + i];
      if (c > first) {
        second = first;
        first = c;
      } else if (c > second) {
        second = c;
      }
    }
    best_[g] = size > 1 && how_.group_rank == MoeGroupRank::two_best ? first + second : first;
    group_order_[g] = static_cast<int32_t>(g);
  }
  std::sort(group_order_, group_order_ + how_.n_group,
            [&](int32_t a, int32_t b) { return best_[a] > best_[b] || (best_[a] == best_[b] && a < b); });
  for (int64_t i = how_.n_group_used; i < how_.n_group; ++i) {
    std::fill_n(choice_ + group_order_[i] * size, size, -INFINITY);
  }
}

}  // namespace tandem
