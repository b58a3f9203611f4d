// Cached prefixes: found by all of their tokens, kept while in use, evicted from their ends.
#include "kv/prefix_cache.h"

#include <gtest/gtest.h>

#include "kv/sequence.h"

namespace tandem {
namespace {

constexpr int64_t kBlock = 4;

class Prefixes : public testing::Test {
 protected:
  // Fills a sequence and publishes its whole blocks.
  PrefixCache::Beginning publish(KvSequence& s, const std::vector<int32_t>& tokens) {
    std::vector<int32_t> slots(tokens.size());
    s.append(static_cast<int64_t>(tokens.size()), slots.data());
    PrefixCache::Beginning at = PrefixCache::kEmpty;
    for (size_t i = 0; i < tokens.size() / kBlock; ++i) {
      const auto block = std::span(tokens).subspan(i * kBlock, kBlock);
      const auto known = cache_.find(at, block);
      if (known) s.replace(i, known->block);
      at = known ? known->beginning : cache_.add(at, block, s.blocks()[i]);
    }
    return at;
  }
  // Number of cached tokens of a text.
  int64_t known(const std::vector<int32_t>& tokens) {
    PrefixCache::Beginning at = PrefixCache::kEmpty;
    int64_t n = 0;
    while (n + kBlock <= static_cast<int64_t>(tokens.size())) {
      const auto found = cache_.find(at, std::span(tokens).subspan(static_cast<size_t>(n), kBlock));
      if (!found) break;
      at = found->beginning;
      n += kBlock;
    }
    return n;
  }

  BlockPool pool_{8};
  PrefixCache cache_{pool_};
};

TEST_F(Prefixes, AreFoundByAllTheirTokens) {
  KvSequence s(pool_, kBlock);
  publish(s, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  EXPECT_EQ(known({1, 2, 3, 4, 5, 6, 7, 8, 9}), 8);
  EXPECT_EQ(known({1, 2, 3, 4, 5, 6, 7}), 4);
  EXPECT_EQ(known({1, 2, 3, 4, 5, 6, 7, 9}), 4);
  EXPECT_EQ(known({1, 2, 3, 5}), 0);
  EXPECT_EQ(known({5, 6, 7, 8}), 0);  // cached only after another prefix
  EXPECT_EQ(cache_.n_unused(), 0);
  s.truncate(0);
  EXPECT_EQ(cache_.n_unused(), 2);
  EXPECT_EQ(pool_.n_free(), 6);
  EXPECT_EQ(known({1, 2, 3, 4, 5, 6, 7, 8}), 8);
}

TEST_F(Prefixes, AreSharedBetweenSequences) {
  KvSequence a(pool_, kBlock), b(pool_, kBlock);
  publish(a, {1, 2, 3, 4, 5, 6, 7, 8});
  publish(b, {1, 2, 3, 4, 9, 9, 9, 9});  // its own first block is freed
  EXPECT_EQ(a.blocks()[0], b.blocks()[0]);
  EXPECT_NE(a.blocks()[1], b.blocks()[1]);
  EXPECT_EQ(pool_.n_free(), 5);
  KvSequence c(pool_, kBlock);
  c.append_shared(a.blocks().first(1));
  EXPECT_EQ(c.length(), 4);
  int32_t slot = 0;
  c.append(1, &slot);
  EXPECT_NE(slot / kBlock, a.blocks()[0]);
  EXPECT_NE(slot / kBlock, a.blocks()[1]);
  a.truncate(0);
  b.truncate(0);
  EXPECT_EQ(cache_.n_unused(), 2);  // without the block that c uses
}

TEST_F(Prefixes, AreEvictedFromTheirEndsTheOldestFirst) {
  {
    KvSequence a(pool_, kBlock), b(pool_, kBlock);
    publish(a, {1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3});
    publish(b, {4, 4, 4, 4, 5, 5, 5, 5});
    EXPECT_EQ(known({1, 1, 1, 1}), 4);  // used last
  }
  EXPECT_EQ(pool_.n_free(), 3);
  EXPECT_TRUE(cache_.make_free(3));
  EXPECT_EQ(cache_.n_unused(), 5);
  EXPECT_TRUE(cache_.make_free(5));
  EXPECT_EQ(pool_.n_free(), 5);
  EXPECT_EQ(known({1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3}), 8);
  EXPECT_EQ(known({4, 4, 4, 4, 5, 5, 5, 5}), 4);
  EXPECT_TRUE(cache_.make_free(7));
  EXPECT_EQ(known({1, 1, 1, 1}), 4);
  KvSequence c(pool_, kBlock);
  c.append_shared(std::vector{cache_.find(PrefixCache::kEmpty, std::vector<int32_t>{1, 1, 1, 1})->block});
  EXPECT_FALSE(cache_.make_free(8));
  EXPECT_EQ(pool_.n_free(), 7);
  c.truncate(0);
  EXPECT_TRUE(cache_.make_free(8));
  EXPECT_EQ(known({1, 1, 1, 1}), 0);
}

// With room for two states.
class PrefixStates : public testing::Test {
 protected:
  // A text of one block of `id`, computed and known, whose state is kept if there is room.
  PrefixCache::Beginning publish(int32_t id, bool is_needed) {
    KvSequence s(pool_, kBlock, &states_);
    const std::vector<int32_t> tokens(kBlock, id);
    std::vector<int32_t> slots(kBlock);
    s.append(kBlock, slots.data());
    const PrefixCache::Beginning made = cache_.add(PrefixCache::kEmpty, tokens, s.blocks()[0]);
    cache_.add_state(made, s.states().back().slot, is_needed);
    return made;
  }
  std::optional<PrefixCache::Found> find(int32_t id) {
    return cache_.find(PrefixCache::kEmpty, std::vector<int32_t>(kBlock, id));
  }

  BlockPool pool_{8}, states_{4};
  PrefixCache cache_{pool_, &states_, 2};
};

TEST_F(PrefixStates, AreKeptAsLongAsThereIsRoom) {
  publish(1, false);
  publish(2, false);
  publish(3, false);
  EXPECT_TRUE(find(1)->state && find(2)->state);
  EXPECT_FALSE(find(3)->state);
  EXPECT_EQ(states_.n_free(), 2);
}

TEST_F(PrefixStates, MakeRoomForOnesThatAreNeeded) {
  publish(1, true);
  publish(2, true);
  EXPECT_TRUE(find(1)->state);  // used last
  publish(3, true);
  EXPECT_TRUE(find(1)->state && find(3)->state);
  EXPECT_FALSE(find(2)->state);
  EXPECT_EQ(states_.n_free(), 2);
}

TEST_F(PrefixStates, AreReadByTheTextsThatGoOn) {
  publish(1, true);
  const PrefixCache::Found found = *find(1);
  KvSequence a(pool_, kBlock, &states_), b(pool_, kBlock, &states_);
  for (KvSequence* s : {&a, &b}) {
    s->append_shared(std::vector{found.block}, found.state);
    EXPECT_EQ(s->length(), kBlock);
    int32_t slot = 0;
    s->append(1, &slot);
    EXPECT_EQ(s->step_slots().read, *found.state);
    EXPECT_NE(s->step_slots().write, *found.state);
  }
  EXPECT_NE(a.step_slots().write, b.step_slots().write);
  a.truncate(kBlock);  // as after a step that failed
  EXPECT_EQ(a.length(), kBlock);
  EXPECT_EQ(a.states().back().slot, *found.state);
}

TEST_F(PrefixStates, GoWithTheirBlocks) {
  publish(1, true);
  publish(2, true);
  EXPECT_EQ(states_.n_free(), 2);
  EXPECT_TRUE(cache_.make_free(8));
  EXPECT_EQ(states_.n_free(), 4);
  publish(3, false);
  EXPECT_TRUE(find(3)->state);
}

}  // namespace
}  // namespace tandem
