// Sorts the (token, expert) pairs of a step by expert, so that each chosen expert's weights are read once for all its
// tokens, and lists what to encode for them.
#pragma once

#include <span>

#include "cpu/ops/scratch_pieces.h"
#include "graph/ops.h"

namespace tandem::cpu {

// Where an encoding starts, and the first of the items of work that make it. An encoding that another group makes has no
// items.
struct EncodingPlace {
  int64_t offset;      // in bytes
  int64_t first_item;  // first_item of the next group minus this is the number of items
};

// The pairs of one expert: [begin, begin + n) in the sorted order.
struct ExpertGroup {
  int32_t expert;
  int32_t begin, n;
  EncodingPlace for_gate, for_up, for_down;
};

// Memory of the sorted pairs.
struct ExpertPairs {
  int32_t* n_groups;  // [1]
  ExpertGroup*
      groups;         // [n_expert + 1] only experts with tokens, in order; then one whose places are the ends
  int32_t* token_of;  // [n * n_used] in sorted order
  int32_t* sorted_at;  // [n, n_used] sorted place of each of a token's pairs; -1: the route leaves it out
  int32_t* alone;      // [n] the first group that is this token alone, or -1

  ExpertPairs(ScratchPieces& pieces, const MoeFfnOp& op, int64_t max_tokens);
  // Fills in all but the places. route: [n, 2 * n_used], see MoeRouteOp.
  void sort(const MoeFfnOp& op, const float* route, int64_t n) const;
  // The experts of one token in the order of its route; `alone` and the places are not filled in.
  void list_one(const MoeFfnOp& op, const float* route) const;
  std::span<ExpertGroup> list() const {
    return {groups, static_cast<size_t>(*n_groups)};
  }  // without the last
};

// Returns the group whose items include `item`.
const ExpertGroup& group_of_item(std::span<const ExpertGroup> groups, EncodingPlace ExpertGroup::*place,
                                 int64_t item);

}  // namespace tandem::cpu
