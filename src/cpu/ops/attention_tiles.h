// How the attention of a step is cut into items for workers.
//
// Tokens are ordered by sequence and position; consecutive tokens of one sequence form a tile, so its rows
// (tokens x query heads of one key-value head) share each read of the cache. No item reads more than a small part of all
// that the step reads: the positions of a tile that is longer are cut into chunks, whose results are merged afterwards. So
// one long text among many short ones keeps all workers busy, as a single one does. The division does not depend on the
// number of workers, so neither do results. Every worker computes the same division itself; nothing is allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "graph/ops.h"

namespace tandem::cpu {

// The query heads that share a key-value head, cut into `parts` of at most `heads` where a tile cannot hold
// them all.
struct HeadParts {
  int64_t group = 1;   // query heads per key-value head
  int64_t heads = 1;   // in a part; the last may have fewer
  int64_t parts = 1;   // per key-value head
  int64_t tokens = 1;  // per tile, at most

  HeadParts() = default;
  HeadParts(const AttentionParams& op, int64_t max_queries);
};

struct AttentionTile {
  int64_t first = 0, n_tokens = 0;   // range of the token order
  int64_t kv_begin = 0, kv_end = 0;  // positions that its tokens see
  int64_t chunk = 0, n_chunks = 1;   // positions per chunk
  int64_t first_item = 0;            // items of a tile: [slot = head part, or all of them][chunk]
  int64_t first_partial_row = 0;     // if split; partial rows: [slot][chunk][rows of the tile]

  bool split() const { return n_chunks > 1; }
  int64_t rows(const HeadParts& parts) const { return n_tokens * parts.heads; }
};

struct AttentionWork {
  std::span<int32_t> order;        // [n_tokens] token indices
  std::span<AttentionTile> tiles;  // ascending first_item, descending first: the most expensive come first
  int64_t n_items = 0;
  bool split = false;     // some tile is
  bool together = false;  // an item is a chunk of all slots

  const AttentionTile& tile_of_item(int64_t item) const;
  const AttentionTile& tile_of_token(int64_t i) const;  // i: place in the token order
};

// Most rows of a tile whose slots are read together.
inline constexpr int64_t kTogetherRows = 8;

struct AttentionInputs {
  std::span<const int32_t> positions, sequences;  // [n_tokens]
  int64_t n_slots = 0;                            // key-value heads x head parts
  int64_t block_size = 0;
  int64_t window = 0;
  KvPart part = KvPart::whole;             // positions to read: all, or one part's
  std::span<const int32_t> hot_from = {};  // [n_sequences] where the hot cache begins
  // Whether an item should read a long text's rows of all slots: heads are neighbours in memory, positions are not.
  bool together = false;
};

// order_memory and tile_memory hold n_tokens elements each.
AttentionWork divide_attention(const AttentionInputs& in, const HeadParts& parts, int32_t* order_memory,
                               AttentionTile* tile_memory);

// Maximum partial rows that divide_attention gives for up to max_tokens tokens and max_positions positions; may_be_together: of
// inputs that may have `together`.
int64_t max_partial_rows(const HeadParts& parts, int64_t n_slots, int64_t max_tokens, int64_t max_positions,
                         bool may_be_together);

}  // namespace tandem::cpu
