// Which blocks of a grouped cache are open: as sequences grow, are cut back, share blocks and end.
#include "kv/open_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv/sequence.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class Groups : public testing::Test {
 protected:
  static constexpr int64_t kBlock = 32;

  KvSequence sequence() { return KvSequence(pool_, kBlock, nullptr, 0, &groups_); }
  void grow(KvSequence& s, int64_t n, OpenGroups::Rows rows = OpenGroups::Rows::of_step) {
    groups_.begin_step();
    std::vector<int32_t> slots(static_cast<size_t>(n));
    s.append(n, slots.data(), rows);
  }
  std::vector<int> open_of(const KvSequence& s) {
    std::vector<int> open;
    for (const int32_t block : s.blocks()) open.push_back(groups_.is_open(block));
    return open;
  }

  BlockPool pool_{40};
  std::vector<int32_t> closed_;
  OpenGroups groups_{pool_, open_block_count(2, kBlock, kBlock), kBlock,
                     [this](std::span<const int32_t> blocks) {
                       closed_.insert(closed_.end(), blocks.begin(), blocks.end());
                     }};
};

TEST_F(Groups, AGroupIsClosedWhenAWindowFollowsIt) {
  KvSequence s = sequence();
  for (int i = 0; i < 5; ++i) grow(s, 32);  // 160 tokens
  EXPECT_THAT(closed_, IsEmpty());
  grow(s, 1);  // after 160, of which the first 32 have 128 behind them
  EXPECT_THAT(closed_, ElementsAre(s.blocks()[0]));
  EXPECT_THAT(open_of(s), ElementsAre(0, 1, 1, 1, 1, 1));
  grow(s, 31);
  grow(s, 1);
  EXPECT_THAT(closed_, ElementsAre(s.blocks()[0], s.blocks()[1]));
}

TEST_F(Groups, KnownRowsAreClosedAtOnce) {
  KvSequence s = sequence();
  grow(s, 333, OpenGroups::Rows::known);
  EXPECT_THAT(closed_, IsEmpty());
  EXPECT_THAT(open_of(s), ElementsAre(0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1));
}

// As when the states of a recurrent model are loaded: one append for each.
TEST_F(Groups, KnownRowsInPartsLeaveNoPlaceBehind) {
  KvSequence s = sequence();
  grow(s, 100, OpenGroups::Rows::known);
  grow(s, 233, OpenGroups::Rows::known);
  EXPECT_THAT(open_of(s), ElementsAre(0, 0, 0, 1, 0, 0, 1, 1, 1, 1, 1));
  KvSequence other = sequence();
  for (int i = 0; i < 7; ++i) grow(other, 32);  // with its five and those of s, 13 places
  EXPECT_THAT(open_of(s), ElementsAre(0, 0, 0, 1, 0, 0, 1, 1, 1, 1, 1));
  KvSequence third = sequence();
  grow(third, 32);
  grow(third, 32);
  grow(third, 32);
  EXPECT_THAT(open_of(s), ElementsAre(0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1));
}

TEST_F(Groups, CuttingIntoAClosedGroupDropsIt) {
  KvSequence s = sequence();
  grow(s, 333, OpenGroups::Rows::known);
  s.truncate(300);
  EXPECT_EQ(s.length(), 300);
  s.truncate(161);
  EXPECT_EQ(s.length(), 160);
  grow(s, 5);
  EXPECT_THAT(open_of(s), ElementsAre(0, 0, 0, 0, 0, 1));
  s.truncate(0);
  EXPECT_EQ(s.length(), 0);
}

// A cut block is not whole, so it is not closed for another's room.
TEST_F(Groups, RoomIsMadeOfWhatIsUnusedThenOfTheOldest) {
  KvSequence a = sequence(), b = sequence();
  for (int i = 0; i < 4; ++i) grow(a, 32);
  a.truncate(100);
  for (int i = 0; i < 5; ++i) grow(b, 32);
  {
    KvSequence ended = sequence();
    for (int i = 0; i < 4; ++i) grow(ended, 32);  // 13 places: all are taken
  }
  EXPECT_THAT(closed_, IsEmpty());
  KvSequence c = sequence();
  for (int i = 0; i < 4; ++i) grow(c, 32);  // in the places of what ended
  EXPECT_THAT(closed_, IsEmpty());
  grow(c, 32);
  EXPECT_THAT(closed_, ElementsAre(a.blocks()[0]));
  grow(a, 1);
  EXPECT_THAT(open_of(a), ElementsAre(0, 1, 1, 1));
  EXPECT_THAT(open_of(c), ElementsAre(1, 1, 1, 1, 1));
}

TEST_F(Groups, SharedGroupsAreClosedForAll) {
  KvSequence a = sequence(), b = sequence();
  for (int i = 0; i < 4; ++i) grow(a, 32);
  b.append_shared(a.blocks());
  grow(b, 32);
  EXPECT_THAT(open_of(a), ElementsAre(1, 1, 1, 1));
  grow(b, 32);
  EXPECT_THAT(open_of(a), ElementsAre(0, 1, 1, 1));
  grow(a, 1);
  EXPECT_EQ(a.length(), 129);
}

}  // namespace
}  // namespace tandem
