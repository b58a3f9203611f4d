// Which positions attention reads and who reads them: the positions a token sees, their cut into splits, the
// address of a cached row, the merge of partial softmax sums, and how the lanes of a warp share rows. No CUDA
// in here: the unit tests run all of it on the host.
#pragma once

#include <cmath>
#include <cstdint>

#include "ggml-cuda/portable.h"

namespace tandem::cuda {

inline constexpr int kDecodeTile = 16;  // positions per tile of a warp of the decode kernel
inline constexpr int kSplitUnit = 64;   // splits begin at multiples of this
inline constexpr int kMaxSplits = 128;

// Positions begin <= p < end.
struct PositionRange {
  int begin = 0, end = 0;
};

TANDEM_HD inline int int_min(int a, int b) {
  return a < b ? a : b;
}
TANDEM_HD inline int int_max(int a, int b) {
  return a > b ? a : b;
}

// Returns the positions that a token at `position` sees; window 0: no window.
TANDEM_HD inline PositionRange seen_by(int position, int window) {
  return {window > 0 ? int_max(0, position - window + 1) : 0, position + 1};
}

// Which positions of the cache an attention reads (KvPart in graph/ops.h).
// A chunk is positions whose rows were made, of latent attention. merged: the whole cache, for a result with logarithms.
enum class CachePart : int { whole, cold, hot, chunk, merged };

// Returns the seen positions of one part of a split cache, relative to the part's first position: 0 of the
// cold cache, hot_from of the hot one.
TANDEM_HD inline PositionRange seen_of_part(PositionRange seen, CachePart part, int hot_from) {
  if (part == CachePart::cold) seen.end = int_min(seen.end, hot_from);
  if (part == CachePart::hot) seen = {int_max(0, seen.begin - hot_from), seen.end - hot_from};
  return seen.begin < seen.end ? seen : PositionRange{0, 0};
}

// Returns the seen positions of n positions from `first` on, relative to it.
TANDEM_HD inline PositionRange seen_of_chunk(PositionRange seen, int first, int n) {
  seen = {int_max(0, seen.begin - first), int_min(n, seen.end - first)};
  return seen.begin < seen.end ? seen : PositionRange{0, 0};
}

// Returns the range of `seen` that belongs to one of n_splits splits: equal runs of whole units, the last
// ones empty (begin == end) where there are few positions. Together they cover `seen` once, in order, for any
// length: a grid with a fixed number of splits serves every length.
TANDEM_HD inline PositionRange split_of(PositionRange seen, int split, int n_splits) {
  const int first = seen.begin / kSplitUnit * kSplitUnit;
  const int n_units = (seen.end - first + kSplitUnit - 1) / kSplitUnit;
  const int chunk = (n_units + n_splits - 1) / n_splits * kSplitUnit;
  const int64_t begin = first + static_cast<int64_t>(split) * chunk;
  if (begin >= seen.end) return {seen.end, seen.end};
  const int64_t end = begin + chunk;
  return {int_max(static_cast<int>(begin), seen.begin), end < seen.end ? static_cast<int>(end) : seen.end};
}

// Returns how many of n_splits have positions, the first ones; 1 if there are none. Blocks of the others end at once.
TANDEM_HD inline int splits_in_use(PositionRange seen, int n_splits) {
  const int n_units = (seen.end - seen.begin / kSplitUnit * kSplitUnit + kSplitUnit - 1) / kSplitUnit;
  if (n_units <= 1) return 1;
  const int chunk = (n_units + n_splits - 1) / n_splits;
  return (n_units + chunk - 1) / chunk;
}

// Number of splits for a step of n_slots rows of blocks (tokens x key-value heads, or tiles x key-value
// heads): as many blocks as there is room for, about, and no split shorter than min_split at the longest context.
inline int split_count(int n_multiprocessors, int64_t n_slots, int64_t max_positions, int min_split, int n_resident = 2) {
  const int64_t by_gpu = static_cast<int64_t>(n_resident) * n_multiprocessors / (n_slots > 0 ? n_slots : 1);
  const int64_t by_length = (max_positions + min_split - 1) / min_split;
  const int64_t n = by_gpu < by_length ? by_gpu : by_length;
  return static_cast<int>(n < 1 ? 1 : n > kMaxSplits ? kMaxSplits : n);
}

// Row in a pool of the slot `offset` of a cache block, for a head (KvLayer in device/device.h).
TANDEM_HD inline int64_t block_row(int block, int head, int offset, int n_head_kv, int block_size) {
  return (static_cast<int64_t>(block) * n_head_kv + head) * block_size + offset;
}

// The weight of a partial result (acc, max, sum) in a whole with maximum m. A sum of 0 means an empty partial
// result; a maximum of -inf with any other sum means only NaN was seen, and NaN is passed on.
TANDEM_HD inline float merge_weight(float max, float sum, float m) {
  if (sum == 0.0f) return 0.0f;
#ifdef __CUDA_ARCH__
  return max == -INFINITY ? 1.0f : __expf(max - m);
#else
  return max == -INFINITY ? 1.0f : std::exp(max - m);
#endif
}

// Returns 0 for the maximum of nothing, so that differences to it are not NaN.
TANDEM_HD inline float finite_max(float m) {
  return m == -INFINITY ? 0.0f : m;
}

// How the 32 lanes of a decode warp share rows: kLanes lanes hold a row, eight elements each, so that a pass
// covers 32 / kLanes positions. After the dot products of kHeads query heads are summed over the lanes of a
// row with every exchange halving the heads that a lane still has, lane l holds the one of head_of(l).
template <int kLanes, int kHeads>
struct LaneMap {
  static_assert(kHeads <= kLanes && kLanes <= 32);
  static constexpr int kPositions = 32 / kLanes;            // a pass
  static constexpr int kPasses = kDecodeTile / kPositions;  // a tile
  static constexpr int kCopies = kLanes / kHeads;           // lanes of a row that end with the same head
  TANDEM_HD static constexpr int chunk_of(int lane) { return lane % kLanes; }
  TANDEM_HD static constexpr int row_of(int lane, int pass) { return pass * kPositions + lane / kLanes; }
  TANDEM_HD static constexpr int head_of(int lane) { return lane % kLanes / kCopies; }
  TANDEM_HD static constexpr bool is_first_copy(int lane) { return lane % kCopies == 0; }

  // The exchange of a step of the reduction: with the lane across `mask`, of the upper or lower half of n
  // heads.
  static constexpr int kSteps = kHeads == 1 ? 0 : kHeads == 2 ? 1 : kHeads == 4 ? 2 : kHeads == 8 ? 3 : 4;
  TANDEM_HD static constexpr int mask_of(int step) { return (kLanes / 2) >> step; }
  TANDEM_HD static constexpr int heads_before(int step) { return kHeads >> step; }
};

}  // namespace tandem::cuda
