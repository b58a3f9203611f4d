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
  c.append_shared(a.blocks()[0]);
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
  c.append_shared(cache_.find(PrefixCache::kEmpty, std::vector<int32_t>{1, 1, 1, 1})->block);
  EXPECT_FALSE(cache_.make_free(8));
  EXPECT_EQ(pool_.n_free(), 7);
  c.truncate(0);
  EXPECT_TRUE(cache_.make_free(8));
  EXPECT_EQ(known({1, 1, 1, 1}), 0);
}

}  // namespace
}  // namespace tandem
