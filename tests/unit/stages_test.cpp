// Layers over stages: how they are divided, where a graph is cut, what crosses the cuts, and the largest logits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "exec/schedule.h"
#include "graph/top_k.h"
#include "pipeline/shares.h"
#include "pipeline/top_logits.h"
#include "plan/cost.h"
#include "plan/session_plan.h"
#include "support/errors.h"
#include "support/gguf_bytes.h"
#include "support/stages_rig.h"
#include "support/tiny_model.h"

namespace tandem {
namespace {

using test::message_of;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<LayerLoad> equal_loads(size_t n) {
  return std::vector<LayerLoad>(n, LayerLoad{1e9, 1e9, 1e3});
}
std::vector<bool> all_cuts(size_t n) {
  return std::vector<bool>(n + 1, true);
}

TEST(LayerShares, GoByTheSpeedOfRanks) {
  const std::vector<RankPower> ranks{{0, 0, 1e12, 1e10}, {0, 0, 1e12, 3e10}, {0, 0, 1e12, 1e10}};
  const LayerShares shares = divide_layers(equal_loads(20), all_cuts(20), ranks, 0);
  EXPECT_THAT(shares.ranges, ElementsAre(LayerRange{0, 4}, LayerRange{4, 16}, LayerRange{16, 20}));
  EXPECT_DOUBLE_EQ(shares.slowest_s, 0.4);
  EXPECT_NEAR(shares.sum_s, 1.2, 1e-9);
}

TEST(LayerShares, StayInMemory) {
  // The fast rank has no room for more than five layers; with the cache of 100000 tokens, for four.
  const std::vector<RankPower> ranks{{0, 0, 5.2e9, 1e12}, {0, 0, 1e12, 1e10}};
  EXPECT_EQ(divide_layers(equal_loads(8), all_cuts(8), ranks, 0).ranges[0].size(), 5);
  EXPECT_EQ(divide_layers(equal_loads(8), all_cuts(8), ranks, 1e5).ranges[0].size(), 4);
  const std::vector<RankPower> small{{0, 0, 3e9, 1}, {0, 0, 3e9, 1}};
  EXPECT_THAT(message_of([&] { divide_layers(equal_loads(8), all_cuts(8), small, 0); }),
              HasSubstr("the model does not fit: its layers take 7.45 GiB with their cache, and the ranks "
                        "have 5.59 GiB together"));
  const std::vector<RankPower> one_small{{0, 0, 1e12, 1}, {0, 0, 5e8, 1}};
  EXPECT_THAT(
      message_of([&] { divide_layers(equal_loads(8), all_cuts(8), one_small, 0); }),
      HasSubstr("rank 1 has 476.8 MiB of memory, and the smallest part of the model takes 953.7 MiB"));
}

TEST(LayerShares, FillGpusFirst) {
  const RankPower rank{2e9, 1e12, 1e12, 1e10};
  EXPECT_DOUBLE_EQ(*rank.seconds(4e9, 4e9), 2e9 / 1e12 + 2e9 / 1e10);
  EXPECT_DOUBLE_EQ(*rank.seconds(1e9, 1e9), 1e-3);
  EXPECT_FALSE((RankPower{1e9, 1e12, 1e9, 1e10}.seconds(3e9, 3e9)));
}

TEST(LayerShares, RespectCuts) {
  std::vector<bool> cuts = all_cuts(8);
  for (const size_t i : {3, 4, 5}) cuts[i] = false;
  const std::vector<RankPower> two(2, RankPower{0, 0, 1e12, 1e10});
  const auto ranges = divide_layers(equal_loads(8), cuts, two, 0).ranges;
  EXPECT_TRUE(ranges[0].end == 2 || ranges[0].end == 6);
  const std::vector<RankPower> six(6, two[0]);
  EXPECT_THAT(message_of([&] { divide_layers(equal_loads(8), cuts, six, 0); }),
              HasSubstr("a model of 8 layers of which some read the cache of others makes at most 5 stages, "
                        "but there are 6"));
}

// Every division of some layers, to compare with.
void each_division(size_t n_layer, size_t n_ranks, std::vector<LayerRange>& ranges,
                   const std::function<void()>& visit) {
  const int begin = ranges.empty() ? 0 : ranges.back().end;
  if (ranges.size() + 1 == n_ranks) {
    if (begin >= static_cast<int>(n_layer)) return;
    ranges.push_back({begin, static_cast<int>(n_layer)});
    visit();
    ranges.pop_back();
    return;
  }
  for (int end = begin + 1; end < static_cast<int>(n_layer); ++end) {
    ranges.push_back({begin, end});
    each_division(n_layer, n_ranks, ranges, visit);
    ranges.pop_back();
  }
}

TEST(LayerShares, AreTheBestOfAllDivisions) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> some(1, 10);
  for (int round = 0; round < 50; ++round) {
    std::vector<LayerLoad> loads;
    for (int i = 0; i < 9; ++i) loads.push_back({some(random), some(random), 0});
    std::vector<RankPower> ranks;
    for (int i = 0; i < 3; ++i)
      ranks.push_back({some(random) * 3, some(random) * 10, some(random) * 4, some(random)});
    double best = 1e300;
    std::vector<LayerRange> ranges;
    each_division(9, 3, ranges, [&] {
      double slowest = 0;
      for (size_t r = 0; r < 3; ++r) {
        double n_bytes = 0, read = 0;
        for (int i = ranges[r].first; i < ranges[r].end; ++i) {
          n_bytes += loads[static_cast<size_t>(i)].n_bytes;
          read += loads[static_cast<size_t>(i)].read_bytes;
        }
        slowest = std::max(slowest, ranks[r].seconds(n_bytes, read).value_or(1e300));
      }
      best = std::min(best, slowest);
    });
    if (best == 1e300) {
      EXPECT_NE(message_of([&] { divide_layers(loads, all_cuts(9), ranks, 0); }), "");
    } else {
      EXPECT_NEAR(divide_layers(loads, all_cuts(9), ranks, 0).slowest_s, best, 1e-9);
    }
  }
}

TEST(GivenLayers, MustBeThoseOfTheModel) {
  const auto given = [](std::vector<int64_t> n, size_t n_ranks = 2) {
    return message_of([&] { given_layers(n, all_cuts(6), n_ranks); });
  };
  EXPECT_EQ(given({2, 4}), "");
  EXPECT_THAT(given({2, 3}),
              HasSubstr("found 2 numbers with a sum of 5, needed one of at least 1 for each of 2 ranks, 6"));
  EXPECT_THAT(given({2, 2, 2}), HasSubstr("found 3 numbers"));
  EXPECT_NE(given({0, 6}), "");
  EXPECT_NE(given({INT64_MAX, INT64_MAX}), "");
  std::vector<bool> cuts = all_cuts(6);
  cuts[2] = false;
  const std::vector<int64_t> n{2, 4};
  EXPECT_THAT(message_of([&] { given_layers(n, cuts, 2); }), HasSubstr("a stage cannot begin with layer 2"));
}

TEST(TopLogits, AreThoseOfTopK) {
  std::vector<float> logits(2 * 50);
  std::mt19937 random(3);
  for (float& x : logits) x = static_cast<float>(random() % 20);  // many ties
  logits[60] = NAN;
  const std::vector<float> top = top_logits(logits, 50, 8);
  ASSERT_EQ(top.size(), 2u * 2 * 8);
  for (size_t row = 0; row < 2; ++row) {
    std::vector<uint64_t> keys;
    for (size_t i = 0; i < 50; ++i)
      keys.push_back(top_key(std::bit_cast<uint32_t>(logits[row * 50 + i]), static_cast<uint32_t>(i)));
    std::ranges::sort(keys, std::greater<>());
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(std::bit_cast<uint32_t>(top[row * 16 + i]), column_of_key(keys[i]));
      EXPECT_EQ(std::bit_cast<uint32_t>(top[row * 16 + 8 + i]), bits_of_key(keys[i]));
    }
  }
  EXPECT_EQ(std::bit_cast<int32_t>(top[16]), 10);  // NaN first
}

class Stages : public testing::Test {
 protected:
  void SetUp() override {
    test::TinyShape shape;
    shape.n_layer = 6;
    shape.tied = true;
    test::tiny_llama(shape).write(path_);
  }
  std::unique_ptr<Model> stage(LayerRange layers) const {
    auto model = Model::load(path_);
    model->keep_layers(layers);
    return model;
  }
  static std::vector<std::string> names_outside(const Model& model) {
    std::vector<std::string> names;
    for (const Weight& w : model.weights()) {
      if (w.layer < 0) names.push_back(w.name);
    }
    return names;
  }

  test::TempDir directory_;
  std::string path_ = directory_.path("model.gguf");
};

TEST_F(Stages, HaveTheWeightsOfTheirLayersAlone) {
  const auto first = stage({0, 2}), middle = stage({2, 5}), last = stage({5, 6});
  EXPECT_THAT(names_outside(*first), ElementsAre("token_embd.weight"));
  EXPECT_THAT(names_outside(*middle), IsEmpty());
  EXPECT_THAT(names_outside(*last), testing::UnorderedElementsAre("token_embd.weight", "output_norm.weight"));
  for (const Weight& w : middle->weights()) EXPECT_TRUE(w.layer >= 2 && w.layer < 5) << w.name;
  EXPECT_EQ(middle->weights().size(), 3 * first->weights().size() / 2 - 1);
  EXPECT_FALSE(middle->architecture().kv_shape(1).has_rows());
  EXPECT_TRUE(middle->architecture().kv_shape(2).has_rows());
}

TEST_F(Stages, ReceiveAndSendTheResidualStream) {
  const int64_t n_embd = 64;
  for (const LayerRange layers : {LayerRange{0, 2}, LayerRange{2, 5}, LayerRange{5, 6}}) {
    SCOPED_TRACE(layers.first);
    const auto model = stage(layers);
    const SessionGraphs graphs = session_graphs(model->architecture(), ContextOptions{0, 16});
    EXPECT_EQ(graphs.decode.received.size(), layers.first > 0 ? 1u : 0u);
    EXPECT_EQ(graphs.decode.sent.size(), layers.end < 6 ? 1u : 0u);
    EXPECT_EQ(graphs.decode.logits != kNoTensor, layers.end == 6);
    const Schedule schedule = make_schedule(graphs.decode, Placement::host_only(6), 1);
    std::vector<CommandKind> kinds;
    for (const Command& c : schedule.commands) {
      kinds.push_back(c.kind);
      if (c.tensor == kNoTensor) continue;
      EXPECT_EQ(graphs.decode.tensor(c.tensor).n_cols, n_embd);
    }
    EXPECT_EQ(std::ranges::count(kinds, CommandKind::receive), layers.first > 0 ? 1 : 0);
    EXPECT_EQ(std::ranges::count(kinds, CommandKind::send), layers.end < 6 ? 1 : 0);
  }
}

TEST_F(Stages, OnlyTheLayersOfAStageAreRead) {
  test::StagesRig rig{path_, {{0, 2}, {2, 5}, {5, 6}}, {}};
  rig.options.context.n_ctx = 128;
  rig.options.context.n_ubatch = 64;
  const std::vector<int32_t> ids(100, 7);
  for (const test::SimRankEnd& end : rig.run([&](Session& session) {
         session.append(ids, LogitsWanted::largest);
         for (int i = 0; i < 3; ++i) session.append(std::span(ids).first(1), LogitsWanted::largest);
       }))
    EXPECT_EQ(end.error, "");
  for (const StageTimes& t : rig.times) {
    EXPECT_EQ(t.n_prompt_tokens, 100);
    EXPECT_EQ(t.n_single_steps, 3);
  }
  for (const size_t rank : {0, 1}) EXPECT_EQ(rig.times[rank].sent_bytes, 103u * 64 * sizeof(float));
}

// While they compute, rank 0 knows what the others have done up to some steps ago.
TEST_F(Stages, TellRankZeroTheirTimes) {
  test::StagesRig rig{path_, {{0, 1}, {1, 2}, {2, 6}}, {}};
  rig.options.context.n_ctx = 128;
  rig.options.context.n_ubatch = 64;
  std::vector<std::string> shown;
  rig.on_lead = [&](Pipeline& pipeline) {
    pipeline.watch(std::chrono::seconds(0), [&](const std::string& text) { shown.push_back(text); });
  };
  const std::vector<int32_t> ids(64, 7);
  constexpr int kTokens = 20;
  for (const test::SimRankEnd& end : rig.run([&](Session& session) {
         session.append(ids, LogitsWanted::largest);
         for (int i = 0; i < kTokens; ++i) session.append(std::span(ids).first(1), LogitsWanted::largest);
       }))
    EXPECT_EQ(end.error, "");
  EXPECT_EQ(shown.size(), static_cast<size_t>(kTokens));  // after the prompt, nobody has read all of it yet
  EXPECT_THAT(shown.front(), HasSubstr("rank 0"));
  EXPECT_THAT(shown.back(), testing::AllOf(HasSubstr("rank 0"), HasSubstr(" ms a step"), HasSubstr("rank 1"),
                                           HasSubstr("rank 2"), HasSubstr("(the slowest)")));
}

TEST(LiveText, NamesTheSlowestRank) {
  const StageTimes quick{.n_single_steps = 10, .single_s = 0.1}, slow{.n_single_steps = 8, .single_s = 0.4};
  for (const test::SimRankEnd& end : test::run_sim_ranks(3, {}, [&](test::SimRanks& ranks) {
         EXPECT_EQ(live_text(ranks, std::vector{quick, slow, quick}),
                   "rank 0 10.00 ms a step, rank 1 50.00 ms (the slowest), rank 2 10.00 ms");
         EXPECT_EQ(live_text(ranks, std::vector(3, StageTimes{})), "");
         // A prompt's tokens once all have read some.
         const StageTimes reads{.n_prompt_tokens = 100, .n_prompt_steps = 2, .prompt_s = 0.2};
         StageTimes reads_slowly = reads;
         reads_slowly.prompt_s = 0.5;
         EXPECT_EQ(live_text(ranks, std::vector{reads, reads_slowly}),
                   "rank 0 2.00 ms a token of the prompt, rank 1 5.00 ms (the slowest)");
         const StageTimes news = reads_slowly.since(reads);
         EXPECT_EQ(news.n_prompt_tokens, 0);
         EXPECT_DOUBLE_EQ(news.prompt_s, 0.3);
       }))
    EXPECT_EQ(end.error, "");
}

// A failing call of any rank ends all with its sentence, and a rank that dies or hangs is named.
TEST_F(Stages, EndWithTheRankThatFails) {
  for (const auto kind : {test::SimRankFailure::Kind::error, test::SimRankFailure::Kind::death,
                          test::SimRankFailure::Kind::hang}) {
    for (int rank = 0; rank < 3; ++rank) {
      for (const int call : {0, 1, 4, 9}) {
        test::StagesRig rig{path_, {{0, 2}, {2, 5}, {5, 6}}, {}};
        rig.options.context.n_ctx = 128;
        rig.options.context.n_ubatch = 32;
        rig.ranks.failures = {{rank, call, kind}};
        const std::vector<int32_t> ids(60, 7);
        const auto ends = rig.run([&](Session& session) {
          session.append(ids, LogitsWanted::largest);
          for (int i = 0; i < 6; ++i) session.append(std::span(ids).first(1), LogitsWanted::largest);
        });
        for (const test::SimRankEnd& end : ends)
          EXPECT_THAT(end.error, HasSubstr("rank " + std::to_string(rank))) << rank << " " << call;
      }
    }
  }
}

}  // namespace
}  // namespace tandem
