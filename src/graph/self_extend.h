// SelfExtend (arXiv:2401.01325): longer texts than a model was trained with, without training. A query sees the `neighbours`
// newest keys at their true distance, and those before at the distance of their groups of `factor` positions, so that no
// distance is larger than what the model knows:
//
//   distance(q, k) = q - k                                                            if q - k < W
//                  = floor(q / N) - floor(k / N) + W - W / N                          otherwise
//
// Both are attention with rotated keys, over different positions. The cache has each key twice, rotated by its position
// and by its group's, and two attention ops whose results are merged read one each: nothing is rotated again, so a cached
// key depends on its token and position alone, however the text is cut into steps.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace tandem {

inline constexpr int64_t kMaxSelfExtend = 1 << 16;  // positions of a group

struct SelfExtend {
  int64_t factor = 1;        // N, positions of a group; 1: off
  int64_t neighbours = 512;  // W, a multiple of the factor

  bool on() const { return factor > 1; }
  // The last position that a token sees by groups; negative: none.
  int64_t last_far(int64_t position) const { return position - neighbours; }
  // Where the rotations of queries and keys are, for what is far.
  int64_t query_group(int64_t position) const { return position / factor + neighbours - neighbours / factor; }
  int64_t key_group(int64_t position) const { return position / factor; }
  // The longest text whose distances are all less than n_trained.
  int64_t longest(int64_t n_trained) const {
    if (!on()) return n_trained;
    return std::min<int64_t>(factor * (n_trained - neighbours) + neighbours,
                             std::numeric_limits<int32_t>::max());
  }
  bool operator==(const SelfExtend&) const = default;
};

}  // namespace tandem
