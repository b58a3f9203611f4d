#include "cpu/ops/expert_groups.h"

#include <algorithm>
#include <bit>

namespace tandem::cpu {

ExpertPairs::ExpertPairs(ScratchPieces& pieces, const MoeFfnOp& op, int64_t max_tokens)
    : n_groups(pieces.take<int32_t>(1)),
      groups(pieces.take<ExpertGroup>(op.n_expert + 1)),
      token_of(pieces.take<int32_t>(max_tokens * op.n_used)),
      sorted_at(pieces.take<int32_t>(max_tokens * op.n_used)),
      alone(pieces.take<int32_t>(max_tokens)) {}

void ExpertPairs::sort(const MoeFfnOp& op, const float* route, int64_t n) const {
  const int64_t n_pairs = n * op.n_used;
  const auto expert_of = [&](int64_t pair) {
    return std::bit_cast<int32_t>(route[pair / op.n_used * 2 * op.n_used + pair % op.n_used]);
  };
  // Counting sort. The groups first hold a count per expert.
  for (int64_t e = 0; e <= op.n_expert; ++e) groups[e] = {static_cast<int32_t>(e), 0, 0, {}, {}, {}};
  for (int64_t p = 0; p < n_pairs; ++p) {
    if (expert_of(p) >= 0) ++groups[expert_of(p)].n;
  }
  int32_t begin = 0;
  for (int64_t e = 0; e < op.n_expert; ++e) {
    groups[e].begin = begin;
    begin += groups[e].n;
    groups[e].n = 0;
  }
  for (int64_t p = 0; p < n_pairs; ++p) {
    sorted_at[p] = -1;
    if (expert_of(p) < 0) continue;
    ExpertGroup& g = groups[expert_of(p)];
    const int32_t at = g.begin + g.n++;
    token_of[at] = static_cast<int32_t>(p / op.n_used);
    sorted_at[p] = at;
  }
  ExpertGroup* to = groups;
  for (int64_t e = 0; e < op.n_expert; ++e) {
    if (groups[e].n > 0) *to++ = groups[e];
  }
  *to = {};
  *n_groups = static_cast<int32_t>(to - groups);

  std::fill_n(alone, n, -1);
  for (ExpertGroup* g = to; g-- != groups;) {
    if (g->n == 1) alone[token_of[g->begin]] = static_cast<int32_t>(g - groups);
  }
}

void ExpertPairs::list_one(const MoeFfnOp& op, const float* route) const {
  ExpertGroup* to = groups;
  for (int32_t i = 0; i < op.n_used; ++i) {
    token_of[i] = 0;
    sorted_at[i] = i;
    if (const auto expert = std::bit_cast<int32_t>(route[i]); expert >= 0) *to++ = {expert, i, 1, {}, {}, {}};
  }
  *n_groups = static_cast<int32_t>(to - groups);
}

const ExpertGroup& group_of_item(std::span<const ExpertGroup> groups, EncodingPlace ExpertGroup::*place,
                                 int64_t item) {
  // The last that starts at or before the item: those before it with the same first item have none.
  const auto after =
      std::upper_bound(groups.begin(), groups.end(), item,
                       [&](int64_t i, const ExpertGroup& g) { return i < (g.*place).first_item; });
  return *(after - 1);
}

}  // namespace tandem::cpu
