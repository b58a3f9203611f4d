#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "kv/block_pool.h"
#include "kv/sequence.h"

namespace tandem {
namespace {

TEST(BlockPool, GivesEachBlockOnceAndRefusesWhenFull) {
  BlockPool pool(3);
  std::set<int32_t> taken{pool.take(), pool.take(), pool.take()};
  EXPECT_EQ(taken.size(), 3u);
  EXPECT_THROW(pool.take(), Error);
  pool.release(1);
  EXPECT_EQ(pool.take(), 1);
}

TEST(KvSequence, SlotsFollowTheBlocks) {
  BlockPool pool(4);
  KvSequence a(pool, 4), b(pool, 4);
  std::vector<int32_t> slots(6);
  a.append(3, slots.data());
  b.append(2, slots.data());
  a.append(6, slots.data());  // positions 3..8: the end of block 0, then two new ones
  EXPECT_EQ(slots, (std::vector<int32_t>{3, 8, 9, 10, 11, 12}));
  EXPECT_EQ(pool.n_free(), 0);
}

TEST(KvSequence, AFullCacheLeavesTheSequenceUnchanged) {
  BlockPool pool(2);
  KvSequence a(pool, 4);
  std::vector<int32_t> slots(16);
  a.append(5, slots.data());
  EXPECT_THROW(a.append(4, slots.data()), Error);
  EXPECT_EQ(a.length(), 5);
  EXPECT_EQ(a.blocks().size(), 2u);
  a.append(3, slots.data());
  EXPECT_EQ(a.length(), 8);
}

TEST(KvSequence, TruncateGivesBlocksBack) {
  BlockPool pool(4);
  KvSequence a(pool, 4);
  std::vector<int32_t> slots(16);
  a.append(16, slots.data());
  a.truncate(5);
  EXPECT_EQ(pool.n_free(), 2);
  a.truncate(0);
  EXPECT_EQ(pool.n_free(), 4);
}

TEST(KvSequence, APrefixIsSharedInWholeBlocksAndNeverOverwritten) {
  BlockPool pool(8);
  KvSequence a(pool, 4);
  std::vector<int32_t> slots(16);
  a.append(11, slots.data());
  {
    KvSequence b(pool, 4);
    for (int i : {0, 1}) b.append_shared(a.blocks()[static_cast<size_t>(i)]);
    EXPECT_EQ(b.length(), 8);
    EXPECT_EQ(pool.n_free(), 5);  // nothing new was taken
    b.append(2, slots.data());
    EXPECT_NE(b.blocks()[2], a.blocks()[2]);
    // Truncating within a shared block releases the whole block, so that the other sequence keeps its data.
    b.truncate(6);
    EXPECT_EQ(b.length(), 4);
    b.append(2, slots.data());
    EXPECT_NE(b.blocks()[1], a.blocks()[1]);
  }
  EXPECT_EQ(pool.n_free(), 5);
  EXPECT_EQ(a.length(), 11);
}

}  // namespace
}  // namespace tandem
