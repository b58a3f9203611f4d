// ExpertChoice: which experts a router's logits choose for a token. The rule of moe_route (graph/ops.h) on the CPU, and of
// guesses what a router will choose.
//
// Writes into room that the caller brings; any thread with room of its own. Throws nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "graph/ops.h"

namespace tandem {

class ExpertChoice {
 public:
  // That the parameters need, aligned for floats.
  static size_t room_bytes(const MoeRouteParams& how);
  ExpertChoice(const MoeRouteParams& how, std::byte* room);

  // The experts that rank highest, by descending score + bias; equal ones by ascending id. `bias` may be null. Valid until
  // the next call.
  std::span<const int32_t> choose(const float* logits, const float* bias, int64_t n);
  // [n_expert] of the last choose(), without bias.
  const float* scores() const { return score_; }

 private:
  void compute_scores(const float* logits);
  void rule_out_groups();

  const MoeRouteParams& how_;
  float* score_;          // [n_expert]
  float* choice_;         // [n_expert] score + bias; -inf: excluded
  float* best_;           // [n_group]
  int32_t* order_;        // [n_expert]
  int32_t* group_order_;  // [n_group]
};

}  // namespace tandem
