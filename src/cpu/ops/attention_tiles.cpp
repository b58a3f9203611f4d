#include "cpu/ops/attention_tiles.h"

#include <algorithm>

#include "base/checked.h"

namespace tandem::cpu {
namespace {

// Enough items for a large socket, and chunks long enough (tens of microseconds) to be worth merging.
constexpr int64_t kWantedItems = 128;
constexpr int64_t kMinChunk = 256;
// Of slots that are read together.
constexpr int64_t kTogetherMinChunk = 128;
constexpr int64_t kTogetherFrom = 4096;  // positions

void sort_tokens(const AttentionInputs& in, std::span<int32_t> order) {
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  const auto before = [&](int32_t a, int32_t b) {
    const size_t i = static_cast<size_t>(a), j = static_cast<size_t>(b);
    if (in.sequences[i] != in.sequences[j]) return in.sequences[i] < in.sequences[j];
    if (in.positions[i] != in.positions[j]) return in.positions[i] < in.positions[j];
    return a < b;
  };
  if (!std::is_sorted(order.begin(), order.end(), before)) std::sort(order.begin(), order.end(), before);
}

// Makes the tile that starts at order[first].
AttentionTile make_tile(const AttentionInputs& in, const HeadParts& parts, std::span<const int32_t> order,
                        int64_t first) {
  const auto token = [&](int64_t i) { return static_cast<size_t>(order[i]); };
  AttentionTile tile;
  tile.first = first;
  int64_t last = first;
  const int64_t limit = std::min(first + parts.tokens, static_cast<int64_t>(order.size()));
  while (last + 1 < limit && in.sequences[token(last + 1)] == in.sequences[token(first)]) ++last;
  tile.n_tokens = last - first + 1;
  tile.kv_end = std::max<int64_t>(0, in.positions[token(last)] + int64_t{1});
  const int64_t from = in.part == KvPart::whole ? 0 : in.hot_from[in.sequences[token(first)]];
  if (in.part == KvPart::cold) tile.kv_end = std::min(tile.kv_end, from);
  if (in.window > 0) {
    const int64_t seen = std::max<int64_t>(0, in.positions[token(first)] - in.window + 1);
    tile.kv_begin = std::min(seen, tile.kv_end) / in.block_size * in.block_size;
  }
  if (in.part == KvPart::hot) {
    tile.kv_begin = std::max(tile.kv_begin, from);
    tile.kv_end = std::max(tile.kv_end, tile.kv_begin);
  }
  return tile;
}

int64_t length_of(const AttentionTile& tile) {
  return std::max<int64_t>(0, tile.kv_end - tile.kv_begin);
}

}  // namespace

HeadParts::HeadParts(const AttentionParams& op, int64_t max_queries) {
  group = op.n_head / op.n_head_kv;
  parts = ceil_div(group, max_queries);
  heads = ceil_div(group, parts);
  tokens = std::max<int64_t>(1, max_queries / heads);
}

const AttentionTile& AttentionWork::tile_of_item(int64_t item) const {
  const auto after = std::upper_bound(tiles.begin(), tiles.end(), item,
                                      [](int64_t i, const AttentionTile& t) { return i < t.first_item; });
  return *(after - 1);
}

AttentionWork divide_attention(const AttentionInputs& in, const HeadParts& parts, int32_t* order_memory,
                               AttentionTile* tile_memory) {
  const int64_t n_tokens = static_cast<int64_t>(in.positions.size());
  AttentionWork work;
  work.order = {order_memory, static_cast<size_t>(n_tokens)};
  sort_tokens(in, work.order);

  int64_t n_tiles = 0;
  for (int64_t first = 0; first < n_tokens; first += tile_memory[n_tiles++].n_tokens) {
    tile_memory[n_tiles] = make_tile(in, parts, work.order, first);
  }
  work.tiles = {tile_memory, static_cast<size_t>(n_tiles)};
  std::reverse(work.tiles.begin(), work.tiles.end());  // later positions see more

  int64_t total = 0;  // positions that are read, of all slots
  for (const AttentionTile& tile : work.tiles) total += in.n_slots * length_of(tile);
  work.together = in.together && n_tiles == 1 && work.tiles[0].rows(parts) <= kTogetherRows &&
                  length_of(work.tiles[0]) >= kTogetherFrom;
  const int64_t wanted = work.together ? kWantedItems * in.n_slots : kWantedItems;
  const int64_t least = work.together ? kTogetherMinChunk : kMinChunk;
  const auto chunk = static_cast<size_t>(std::max(least, ceil_div(total, wanted)));
  int64_t partial_row = 0;
  for (AttentionTile& tile : work.tiles) {
    tile.chunk = static_cast<int64_t>(align_up(chunk, static_cast<size_t>(in.block_size)));
    tile.n_chunks = std::max<int64_t>(1, ceil_div(length_of(tile), tile.chunk));
    tile.first_item = work.n_items;
    work.n_items += (work.together ? 1 : in.n_slots) * tile.n_chunks;
    if (!tile.split()) continue;
    tile.first_partial_row = partial_row;
    partial_row += in.n_slots * tile.n_chunks * tile.rows(parts);
    work.split = true;
  }
  return work;
}

const AttentionTile& AttentionWork::tile_of_token(int64_t i) const {
  return *std::partition_point(tiles.begin(), tiles.end(),
                               [&](const AttentionTile& t) { return t.first > i; });
}

int64_t max_partial_rows(const HeadParts& parts, int64_t n_slots, int64_t max_tokens, int64_t max_positions,
                         bool may_be_together) {
  if (max_positions <= kMinChunk) return 0;
  // Of pairs of a tile and a slot, only those that read more than one in kWantedItems of all positions are cut, so there
  // are fewer than kWantedItems. Their chunks are as many as that goes into all positions, and at most one more of each pair.
  const int64_t tile_rows = std::min(max_tokens, parts.tokens) * parts.heads;
  const int64_t rows = std::min(n_slots * max_tokens * parts.heads, kWantedItems * tile_rows);
  const int64_t apart = std::min(kWantedItems * tile_rows + rows, rows * ceil_div(max_positions, kMinChunk));
  if (!may_be_together || max_positions < kTogetherFrom) return apart;
  return std::max(apart, kWantedItems * n_slots * std::min(tile_rows, kTogetherRows));
}

}  // namespace tandem::cpu
