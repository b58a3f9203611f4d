// The parts of the store of experts: the order in which they go, the division of its memory, and what it is expected to
// have, against a simulation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "exec/eviction_order.h"
#include "exec/expert_room.h"
#include "graph/builder.h"
#include "plan/expert_hits.h"

namespace tandem {
namespace {

std::vector<size_t> order_of(EvictionOrder order) {
  std::vector<size_t> slots;
  while (slots.size() < order.n_slots()) {
    const auto is_new = [&](size_t s) { return std::ranges::find(slots, s) == slots.end(); };
    slots.push_back(order.first(is_new));
  }
  return slots;
}

TEST(EvictionOrder, LeastRecentlyUsedFirst) {
  EvictionOrder order(5);
  EXPECT_EQ(order_of(order), (std::vector<size_t>{0, 1, 2, 3, 4}));
  order.used(0);
  order.used(3);
  EXPECT_EQ(order_of(order), (std::vector<size_t>{1, 2, 4, 0, 3}));
  order.used(3);
  order.unwanted(0);
  order.unwanted(0);
  EXPECT_EQ(order_of(order), (std::vector<size_t>{0, 1, 2, 4, 3}));
  EXPECT_EQ(order.first([](size_t) { return false; }), 5u);
}

// A graph of mixtures without data. Each second layer's Wdown is larger.
class Room : public testing::Test {
 protected:
  static constexpr int64_t kExperts = 8, kUsed = 2, kLayers = 6;

  Graph graph(int64_t n_sequences) {
    GraphBuilder b({.max_tokens = n_sequences, .max_outputs = n_sequences, .max_sequences = n_sequences});
    TensorId x = b.embed(&table_);
    for (int i = 0; i < kLayers; ++i) {
      b.set_layer(i);
      const auto weight = [&](const char* name, DType dtype, int64_t n_mats) {
        return &weights_.emplace_back(Weight{.name = std::string(name) + ".weight",
                                             .dtype = dtype,
                                             .n_mats = n_mats,
                                             .n_rows = n_mats > 1 ? 256 : kExperts,
                                             .n_cols = 256,
                                             .layer = i,
                                             .in_file = true});
      };
      const TensorId route = b.moe_route(b.linear(x, weight("ffn_gate_inp", DType::F32, 1)),
                                         {.n_expert = kExperts, .n_used = kUsed});
      x = b.moe_ffn(x, route, {.n_expert = kExperts, .n_used = kUsed},
                    weight("ffn_gate_exps", DType::Q4_K, kExperts),
                    weight("ffn_up_exps", DType::Q4_K, kExperts),
                    weight("ffn_down_exps", i % 2 ? DType::Q6_K : DType::Q4_K, kExperts));
    }
    b.set_layer(kLayers);
    return b.finish(b.linear(b.gather_outputs(x), &table_));
  }
  static Placement placement(size_t n_bytes) {
    Placement p = Placement::host_only(kLayers);
    for (LayerPlacement& layer : p.layers) layer.experts = chosen_from_disk({});
    p.n_expert_bytes = n_bytes;
    return p;
  }

  Weight table_{.name = "table", .n_rows = 256, .n_cols = 256};
  std::deque<Weight> weights_;
};

TEST_F(Room, IsDividedAmongLayersOfEqualExperts) {
  const Graph g = graph(1);
  const ExpertRoom all = expert_room(g, placement(size_t{1} << 40));
  ASSERT_EQ(all.pools.size(), 2u);
  EXPECT_EQ(all.n_slots(), static_cast<size_t>(kLayers * kExperts));
  EXPECT_EQ(all.n_experts(), all.n_slots());
  EXPECT_EQ(all.layers[0].router.matrix->name, "ffn_gate_inp.weight");
  const ExpertRoom least = expert_room(g, placement(0));
  EXPECT_EQ(least.n_slots(), static_cast<size_t>(2 * kUsed));
  EXPECT_EQ(expert_room(graph(3), placement(0)).n_slots(), static_cast<size_t>(2 * 3 * kUsed));
  EXPECT_EQ(expert_room(graph(9), placement(0)).n_slots(), static_cast<size_t>(2 * kExperts));
  for (size_t n = least.n_bytes(); n < all.n_bytes(); n += 100'000) {
    const ExpertRoom room = expert_room(g, placement(n));
    EXPECT_LE(room.n_bytes(), n);
    EXPECT_GT(room.n_bytes() + room.pools[0].slot_bytes + room.pools[1].slot_bytes, n);
    const auto n_first = static_cast<int64_t>(room.pools[0].n_slots),
               n_second = static_cast<int64_t>(room.pools[1].n_slots);
    EXPECT_LE(std::abs(n_first - n_second), 1);
  }
}

// Tokens that choose by the assumed law, and a least-recently-used list of all layers' experts, but for those that a GPU keeps.
TEST_F(Room, ExpectedHitsAreThoseOfASimulation) {
  const Graph g = graph(1);
  std::mt19937_64 random(3);
  for (const auto& [share, n_on_gpu] : {std::pair(0.2, size_t{0}), std::pair(0.4, size_t{0}),
                                        std::pair(0.7, size_t{0}), std::pair(0.3, size_t{3})}) {
    const ExpertRoom all = expert_room(g, placement(size_t{1} << 40));
    ExpertRoom room =
        expert_room(g, placement(static_cast<size_t>(share * static_cast<double>(all.n_bytes()))));
    for (ExpertLayer& layer : room.layers) layer.n_on_gpu = static_cast<int64_t>(n_on_gpu);
    double n_asked = 0, n_found = 0;
    std::vector<std::vector<size_t>> held(room.pools.size());  // most recently used last
    for (int token = 0; token < 4000; ++token) {
      for (size_t p = 0; p < room.pools.size(); ++p) {
        for (const size_t layer : room.pools[p].layers) {
          for (size_t e = n_on_gpu; e < kExperts; ++e) {
            double sum = 0;
            for (int r = 1; r <= kExperts; ++r) sum += std::pow(r, -kUsualExpertSkew);
            const double chance =
                std::min(1.0, kUsed * std::pow(static_cast<double>(e + 1), -kUsualExpertSkew) / sum);
            if (static_cast<double>(random() >> 11) * 0x1p-53 >= chance) continue;
            const size_t key = layer * kExperts + e;
            const auto found = std::ranges::find(held[p], key);
            if (token >= 500) {
              ++n_asked;
              n_found += found != held[p].end();
            }
            if (found != held[p].end()) held[p].erase(found);
            held[p].push_back(key);
            if (held[p].size() > room.pools[p].n_slots) held[p].erase(held[p].begin());
          }
        }
      }
    }
    EXPECT_NEAR(expected_hits(room, nullptr, 1).share(), n_found / n_asked, 0.03) << share;
  }
}

TEST_F(Room, ExpectedHitsGoByWhatIsRecorded) {
  const Graph g = graph(1);
  const ExpertRoom all = expert_room(g, placement(size_t{1} << 40));
  const ExpertRoom half = expert_room(g, placement(all.n_bytes() / 2));
  EXPECT_EQ(expected_hits(all, nullptr, 1).share(), 1);
  EXPECT_EQ(expected_hits(all, nullptr, 1).read_bytes(), 0);
  ExpertUse few, equal;
  for (int layer = 0; layer < kLayers; ++layer) {
    few.counts[layer] = {500, 0, 0, 500, 0, 0, 0, 0};
    equal.counts[layer] = std::vector<uint64_t>(kExperts, 1000);
  }
  EXPECT_GT(expected_hits(half, &few, 1).share(), 0.98);
  EXPECT_LT(expected_hits(half, &equal, 1).share(), 0.5);
  EXPECT_GT(expected_hits(half, &equal, 1).share(), 0.35);
  const ExpertHits one = expected_hits(half, nullptr, 1), four = expected_hits(half, nullptr, 4);
  EXPECT_GT(four.layers[0].n_asked, 2 * one.layers[0].n_asked);
  EXPECT_LT(four.layers[0].n_asked, 4 * one.layers[0].n_asked);
  // Of each layer, the missing experts' bytes.
  EXPECT_GT(one.layers[1].missing_bytes, one.layers[0].missing_bytes);
}

// What a GPU keeps of a layer is not asked for in the steps that it keeps it for.
TEST_F(Room, KnowsWhatAGpuKeeps) {
  Placement p = placement(size_t{1} << 40);
  p.layers[1].experts = with_cached_experts(p.layers[1].experts, {.on = GpuId(0), .n_slots = 5});
  const ExpertRoom decode = expert_room(graph(1), p);
  EXPECT_EQ(decode.layers[0].n_on_gpu, 0);
  EXPECT_EQ(decode.layers[1].n_on_gpu, 5);
  EXPECT_EQ(decode.n_slots(), static_cast<size_t>(kLayers * kExperts));
  EXPECT_LT(expected_hits(decode, nullptr, 1).layers[1].n_asked,
            0.6 * expected_hits(decode, nullptr, 1).layers[0].n_asked);
  EXPECT_EQ(without_cached_experts(p.layers[1].experts), p.layers[0].experts);
}

}  // namespace
}  // namespace tandem
