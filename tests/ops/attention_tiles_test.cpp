// The division of attention into work items: every pair of a query and a visible position belongs to exactly
// one item, and the partial results fit in their scratch memory.
#include "cpu/ops/attention_tiles.h"

#include <map>
#include <set>

#include "base/checked.h"
#include "ops/row_harness.h"

namespace tandem::cpu {
namespace {

using test::Random;

struct Tokens {
  std::vector<int32_t> positions, sequences;
};

// Some sequences, each with a run of tokens at its end, shuffled.
Tokens random_tokens(Random& random, int64_t max_tokens, int64_t max_positions) {
  std::vector<std::pair<int32_t, int32_t>> all;
  const int64_t n = 1 + random.below(max_tokens), n_sequences = 1 + random.below(std::min<int64_t>(n, 5));
  for (int64_t s = 0; s < n_sequences; ++s) {
    const int64_t count = std::min(n / n_sequences, max_positions);
    const int64_t first = random.below(max_positions - count + 1);
    for (int64_t i = 0; i < count; ++i)
      all.emplace_back(static_cast<int32_t>(s), static_cast<int32_t>(first + i));
  }
  if (random.below(2) != 0) random.shuffle(all);
  Tokens tokens;
  for (const auto& [s, p] : all) {
    tokens.sequences.push_back(s);
    tokens.positions.push_back(p);
  }
  return tokens;
}

void check_tiles(Random& random) {
  AttentionParams op;
  op.n_head_kv = 1 + random.below(8);
  op.n_head = op.n_head_kv * (1 + random.below(random.below(4) == 0 ? 150 : 9));
  const HeadParts parts(op, 64);
  ASSERT_LE(parts.heads * parts.tokens, 64);
  ASSERT_GE(parts.heads * parts.parts, parts.group);
  ASSERT_LT(parts.heads * (parts.parts - 1), parts.group);

  const int64_t block_sizes[] = {1, 7, 16, 32, 300};
  AttentionInputs in;
  in.n_slots = op.n_head_kv * parts.parts;
  in.block_size = block_sizes[random.below(5)];
  in.window = random.below(2) != 0 ? 0 : 1 + random.below(700);
  const int64_t max_tokens = 1 + random.below(random.below(2) != 0 ? 4 : 300),
                max_positions = 300 + random.below(random.below(4) == 0 ? 20000 : 5000);
  const Tokens tokens = random_tokens(random, max_tokens, max_positions);
  in.together = random.below(2) != 0;
  in.positions = tokens.positions;
  in.sequences = tokens.sequences;
  std::vector<int32_t> order(tokens.positions.size());
  std::vector<AttentionTile> tiles(tokens.positions.size());
  const AttentionWork work = divide_attention(in, parts, order.data(), tiles.data());

  std::set<int32_t> seen_tokens;
  int64_t items = 0, all_positions = 0;
  for (const AttentionTile& tile : work.tiles) all_positions += in.n_slots * (tile.kv_end - tile.kv_begin);
  std::map<int64_t, int64_t> partial_rows;  // first row -> rows
  for (const AttentionTile& tile : work.tiles) {
    ASSERT_LE(tile.rows(parts), 64);
    ASSERT_EQ(tile.first_item, items);
    ASSERT_EQ(tile.kv_begin % in.block_size, 0);
    ASSERT_EQ(tile.chunk % in.block_size, 0);
    // No item reads much more than one in 128 of all, but for 256 positions; with 128 where slots are read together.
    const int64_t longest = std::min(tile.chunk, tile.kv_end - tile.kv_begin);
    const int64_t n_wanted = work.together ? 128 * in.n_slots : 128, least = work.together ? 128 : 256;
    ASSERT_LT(longest, std::max(least, ceil_div(all_positions, n_wanted)) + in.block_size);
    if (work.together) {
      ASSERT_TRUE(in.together && tile.split());
      ASSERT_EQ(work.tiles.size(), 1u);
    }
    if (tile.split()) {
      ASSERT_GE(tile.n_chunks * tile.chunk, tile.kv_end - tile.kv_begin);
      ASSERT_LT((tile.n_chunks - 1) * tile.chunk, tile.kv_end - tile.kv_begin);
    }
    items += (work.together ? 1 : in.n_slots) * tile.n_chunks;
    for (int64_t i = tile.first_item; i < items; ++i) ASSERT_EQ(&work.tile_of_item(i), &tile);
    if (tile.split()) partial_rows[tile.first_partial_row] = in.n_slots * tile.n_chunks * tile.rows(parts);
    for (int64_t i = tile.first; i < tile.first + tile.n_tokens; ++i) {
      const size_t token = static_cast<size_t>(work.order[static_cast<size_t>(i)]);
      ASSERT_TRUE(seen_tokens.insert(static_cast<int32_t>(token)).second);
      ASSERT_EQ(&work.tile_of_token(i), &tile);
      ASSERT_EQ(in.sequences[token],
                in.sequences[static_cast<size_t>(work.order[static_cast<size_t>(tile.first)])]);
      ASSERT_LT(in.positions[token], tile.kv_end);
      ASSERT_LE(tile.kv_begin, in.window > 0 ? std::max<int64_t>(0, in.positions[token] - in.window + 1) : 0);
    }
  }
  ASSERT_EQ(work.n_items, items);
  ASSERT_EQ(seen_tokens.size(), tokens.positions.size());
  int64_t next_row = 0;
  for (const auto& [first, rows] : partial_rows) {
    ASSERT_EQ(first, next_row);
    next_row += rows;
  }
  ASSERT_EQ(work.split, !partial_rows.empty());
  ASSERT_LE(next_row, max_partial_rows(parts, in.n_slots, max_tokens, max_positions, in.together));
}

TEST(AttentionTiles, CoverEverythingOnceAndFit) {
  Random random;
  for (int i = 0; i < 3000 && !HasFatalFailure(); ++i) check_tiles(random);
}

TEST(AttentionTiles, DecodeIsSplitAndPrefillIsNot) {
  AttentionParams op{32, 4, 64, 64};
  const HeadParts parts(op, 64);
  std::vector<int32_t> positions{4095}, sequences{0}, order(512);
  std::vector<AttentionTile> tiles(512);
  const AttentionWork decode =
      divide_attention({positions, sequences, 4, 32, 0}, parts, order.data(), tiles.data());
  EXPECT_TRUE(decode.split);
  EXPECT_EQ(decode.n_items, 4 * 16);
  positions.resize(512);
  sequences.resize(512);
  for (int i = 0; i < 512; ++i) positions[static_cast<size_t>(i)] = i;
  const AttentionWork prefill =
      divide_attention({positions, sequences, 4, 32, 0}, parts, order.data(), tiles.data());
  EXPECT_FALSE(prefill.split);
  EXPECT_EQ(prefill.n_items, 4 * 64);
  EXPECT_EQ(prefill.tile_of_item(0).kv_end, 512);  // the most expensive first
}

// A step of a few tokens of one long text, if the kernels want it.
TEST(AttentionTiles, HeadsOfALongTextAreOneItem) {
  const AttentionParams op{8, 8, 64, 64};
  const HeadParts parts(op, 64);
  const auto divide = [&](size_t n_tokens, int32_t last, bool together) {
    std::vector<int32_t> positions(n_tokens), sequences(n_tokens), order(n_tokens);
    for (size_t i = 0; i < n_tokens; ++i) positions[i] = last - static_cast<int32_t>(i);
    std::vector<AttentionTile> tiles(n_tokens);
    AttentionInputs in{positions, sequences, 8, 32, 0};
    in.together = together;
    const AttentionWork work = divide_attention(in, parts, order.data(), tiles.data());
    return std::pair(work.together, work.n_items);
  };
  EXPECT_EQ(divide(1, 32767, true), std::pair(true, int64_t{128}));
  EXPECT_EQ(divide(1, 32767, false), std::pair(false, int64_t{128}));
  EXPECT_TRUE(divide(kTogetherRows, 32767, true).first);
  EXPECT_FALSE(divide(kTogetherRows + 1, 32767, true).first);
  EXPECT_EQ(divide(1, 4095, true), std::pair(true, int64_t{32}));
  EXPECT_FALSE(divide(1, 4094, true).first);
}

// One text of 32768 tokens among short ones: its positions are cut, so that none of 64 workers waits for another.
TEST(AttentionTiles, ALongTextIsSplitAtAnyBatchSize) {
  const AttentionParams op{32, 8, 64, 64};
  const HeadParts parts(op, 64);
  for (const size_t n_sequences : {1, 2, 15, 16, 17, 64, 300}) {
    SCOPED_TRACE(testing::Message() << n_sequences << " sequences");
    std::vector<int32_t> positions(n_sequences, 99), sequences(n_sequences), order(n_sequences);
    for (size_t i = 0; i < n_sequences; ++i) sequences[i] = static_cast<int32_t>(i);
    positions[n_sequences / 2] = 32767;
    std::vector<AttentionTile> tiles(n_sequences);
    const AttentionWork work =
        divide_attention({positions, sequences, 8, 32, 0}, parts, order.data(), tiles.data());
    int64_t n_split = 0, all = 0, longest = 0;
    for (const AttentionTile& tile : work.tiles) {
      n_split += tile.split();
      all += 8 * (tile.kv_end - tile.kv_begin);
      longest = std::max(longest, std::min(tile.chunk, tile.kv_end - tile.kv_begin));
    }
    EXPECT_EQ(n_split, 1) << "short texts are whole";
    EXPECT_LE(longest, all / 128 + 32);
    EXPECT_GE(work.n_items, 64);
  }
}

}  // namespace
}  // namespace tandem::cpu
