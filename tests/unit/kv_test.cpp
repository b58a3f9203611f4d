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
    b.append_shared(a.blocks().first(2));
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

std::vector<int64_t> positions(const KvSequence& sequence) {
  std::vector<int64_t> list;
  for (const KvSequence::State& state : sequence.states()) list.push_back(state.position);
  return list;
}

TEST(KvSequence, StepsWriteANewStateAndLeaveCheckpointsAtBorders) {
  BlockPool pool(8), states(5);
  std::vector<int32_t> slots(64);
  KvSequence a(pool, 4, &states, 3);
  a.append(3, slots.data());
  EXPECT_EQ(a.step_slots().read, a.step_slots().write);  // nothing is read at the start
  const int32_t first = a.step_slots().write;
  a.append(5, slots.data());
  EXPECT_EQ(a.step_slots().read, first);
  EXPECT_NE(a.step_slots().write, first);
  a.append(1, slots.data());
  EXPECT_EQ(positions(a), (std::vector<int64_t>{8, 9}));  // 3 is not at a border
  a.append(3, slots.data());
  a.append(1, slots.data());
  EXPECT_EQ(positions(a), (std::vector<int64_t>{8, 12, 13}));
  EXPECT_EQ(states.n_free(), 2);
}

TEST(KvSequence, IsCutBackToAState) {
  BlockPool pool(8), states(5);
  std::vector<int32_t> slots(64);
  KvSequence a(pool, 4, &states, 3);
  a.append(8, slots.data());
  a.append(3, slots.data());
  a.append(2, slots.data());
  a.truncate(13);
  EXPECT_EQ(a.length(), 13);
  a.truncate(12);
  EXPECT_EQ(a.length(), 11);  // the state before the last step is still there
  a.truncate(10);
  EXPECT_EQ(a.length(), 8);
  EXPECT_EQ(a.blocks().size(), 2u);
  a.append(2, slots.data());
  a.truncate(8);  // as after a step that failed
  EXPECT_EQ(positions(a), (std::vector<int64_t>{8}));
  a.truncate(7);
  EXPECT_EQ(a.length(), 0);
  EXPECT_EQ(states.n_free(), 5);
  EXPECT_EQ(pool.n_free(), 8);
}

TEST(KvSequence, KeepsTheNewestCheckpointAndFewerFartherBack) {
  constexpr int64_t kCheckpoints = 4;
  BlockPool pool(256), states(kCheckpoints + 2);
  std::vector<int32_t> slots(4);
  KvSequence a(pool, 4, &states, kCheckpoints);
  for (int64_t n = 4; n <= 1024; n += 4) {
    a.append(4, slots.data());
    const std::vector<int64_t> kept = positions(a);
    ASSERT_LE(kept.size(), static_cast<size_t>(kCheckpoints + 2));
    ASSERT_EQ(kept.back(), n);
    if (n > 4) {
      ASSERT_EQ(kept[kept.size() - 2], n - 4);
    }
  }
  EXPECT_LT(positions(a).front(), 900);  // some of them far back
  KvSequence none(pool, 4, &states, 0);
  EXPECT_EQ(states.n_free(), 0);
  EXPECT_THROW(none.append(1, slots.data()), Error);
  EXPECT_EQ(none.length(), 0);
}

}  // namespace
}  // namespace tandem
