// Grouping tokens by expert for the GPU.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "ggml-cuda/expert_groups.h"

namespace tandem::cuda {
namespace {

TEST(CudaExpertGroups, TilesCoverEverySlotOfEveryExpertOnce) {
  std::mt19937 rng(3);
  for (const int n_expert : {1, 8, 37, 256}) {
    for (const int n_slots : {1, 20, 64, 4096}) {
      for (const int tile : {32, 64}) {
        std::vector<int> counts(n_expert), firsts(n_expert, -1);
        // An uneven distribution over the experts.
        for (int s = 0; s < n_slots; ++s) ++counts[rng() % (1 + rng() % static_cast<unsigned>(n_expert))];
        std::vector<TokenTile> tiles(static_cast<size_t>(max_token_tiles(n_slots, n_expert, tile)),
                                     {-1, -1, -1});
        const int n_tiles = make_tiles(counts.data(), n_expert, tile, firsts.data(), tiles.data());
        ASSERT_LE(n_tiles, static_cast<int>(tiles.size()));
        int next = 0;
        std::vector<int> covered(n_expert);
        for (int i = 0; i < n_tiles; ++i) {
          ASSERT_EQ(tiles[i].first, next);
          ASSERT_GE(tiles[i].count, 1);
          ASSERT_LE(tiles[i].count, tile);
          ASSERT_GE(tiles[i].first, firsts[tiles[i].expert]);
          covered[tiles[i].expert] += tiles[i].count;
          next += tiles[i].count;
        }
        EXPECT_EQ(next, n_slots);
        EXPECT_EQ(covered, counts);
      }
    }
  }
}

// The worst case: every expert has a tile with a single token, and one expert has the rest.
TEST(CudaExpertGroups, RoomForTilesIsEnough) {
  for (const int tile : {32, 64}) {
    for (int n_slots = 1; n_slots < 300; ++n_slots) {
      for (int n_expert = 1; n_expert < 20; ++n_expert) {
        std::vector<int> counts(n_expert, 0), firsts(n_expert);
        const int used = std::min(n_expert, n_slots);
        for (int e = 0; e < used; ++e) counts[e] = 1;
        counts[0] += n_slots - used;
        std::vector<TokenTile> tiles(static_cast<size_t>(n_slots));
        ASSERT_LE(make_tiles(counts.data(), n_expert, tile, firsts.data(), tiles.data()),
                  max_token_tiles(n_slots, n_expert, tile));
      }
    }
  }
}

}  // namespace
}  // namespace tandem::cuda
