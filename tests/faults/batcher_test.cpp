// Continuous batching: every answer equals that of its prompt alone, for any other prompts in the batch, any
// placement, a small cache, and any failing allocation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "support/batch_rig.h"

namespace tandem {
namespace {

using testing::HasSubstr;

class Batches : public test::BatchRig {
 protected:
  void SetUp() override { load_both(3); }
};

TEST_F(Batches, AnswersEqualThoseOfPromptsAlone) {
  const std::vector<BatchRequest> list = requests(24);
  for (const Model* model : {dense_.get(), moe_.get()}) {
    const std::vector<std::string> expected = alone(*model, list);
    for (int64_t n = 1; n <= 9; ++n) {
      SCOPED_TRACE(n);
      Runtime runtime(*model, {host_.get()}, options(n));
      Batcher batcher(runtime);
      EXPECT_EQ(together(batcher, list), expected);
      EXPECT_EQ(batcher.stats().n_preempted, 0);
      int64_t n_generated = 0;
      for (const std::string& e : expected) n_generated += std::stoll(e.substr(e.rfind('|') + 1));
      EXPECT_EQ(batcher.stats().n_generated, n_generated);
    }
  }
}

TEST_F(Batches, AnyPlacement) {
  test::SimDevice sim({.copy_bytes_per_s = 6e8});
  const std::vector<Device*> both{host_.get(), &sim};
  const std::vector<BatchRequest> list = requests(12);
  for (const Model* model : {dense_.get(), moe_.get()}) {
    const std::vector<std::string> expected = alone(*model, list);
    for (const OffloadChoice& choice :
         {OffloadChoice{2}, OffloadChoice{4}, OffloadChoice{4, CacheOnHost{}}, OffloadChoice{4, CacheOnHost{true}},
          OffloadChoice{4, {}, 2}, OffloadChoice{1, CacheOnHost{true}, 0, Streaming::prefill},
          OffloadChoice{2, CacheBesideLayers{true}, 0, Streaming::prefill},
          OffloadChoice{2, PrefetchedCache{}, 0, Streaming::prefill},
          OffloadChoice{1, {}, 0, Streaming::always}, OffloadChoice{.n_disk_layers = 3},
          OffloadChoice{.n_gpu_layers = 2, .streaming = Streaming::prefill, .n_disk_layers = 2}}) {
      SCOPED_TRACE("-ngl " + std::to_string(choice.n_gpu_layers) + " " +
                   std::string(streaming_name(choice.streaming)));
      EngineOptions o = options(5, 512);
      o.placement = place(model->architecture(), model->weights(), both, {}, choice);
      Runtime runtime(*model, both, o);
      Batcher batcher(runtime);
      EXPECT_EQ(together(batcher, list), expected);
      EXPECT_EQ(sim.used_bytes(), runtime.placement().bytes.devices[1].total());
    }
  }
}

TEST_F(Batches, AFullCacheComputesAgain) {
  std::vector<BatchRequest> list = requests(20);
  for (BatchRequest& r : list) r.generation.n_predict = 150;  // more than is reserved for an answer
  const std::vector<std::string> expected = alone(*dense_, list);
  int64_t n_preempted = 0;
  for (int64_t n_ctx : {256, 288, 320, 512}) {
    SCOPED_TRACE(n_ctx);
    Runtime runtime(*dense_, {host_.get()}, options(6, n_ctx));
    Batcher batcher(runtime);
    EXPECT_EQ(together(batcher, list), expected);
    n_preempted += batcher.stats().n_preempted;
    EXPECT_EQ(batcher.stats().n_recomputed > 0, batcher.stats().n_preempted > 0);
  }
  EXPECT_GT(n_preempted, 3);
}

TEST_F(Batches, ComputeASharedPrefixOnce) {
  constexpr int kShared = 70;  // two whole blocks
  const std::vector<BatchRequest> list = requests(16, kShared);
  const std::vector<std::string> expected = alone(*moe_, list);
  Runtime runtime(*moe_, {host_.get()}, options(4));
  Batcher batcher(runtime);
  EXPECT_EQ(together(batcher, list), expected);
  EXPECT_GE(batcher.stats().n_reused, 15 * 64);
  // Again: the prefix is still cached, so that only the tokens after the last whole block are computed.
  int64_t n_again = 0;
  for (const BatchRequest& r : list) n_again += (static_cast<int64_t>(r.prompt.size()) - 1) / 32 * 32;
  const int64_t before = batcher.stats().n_reused;
  EXPECT_EQ(together(batcher, list), expected);
  EXPECT_EQ(batcher.stats().n_reused - before, n_again);
  // Cached prefixes do not block later prompts.
  EXPECT_EQ(together(batcher, requests(16)), alone(*moe_, requests(16)));
}

// All at once: shared prefixes, a small cache, any number of sequences, answers of any length.
TEST_F(Batches, AllKindsOfRequests) {
  std::mt19937 rng(7);
  const auto below = [&](int n) { return static_cast<int>(rng() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(round);
    std::vector<BatchRequest> list;
    for (int i = 0; i < 25; ++i) {
      BatchRequest r = request(i, below(3) * 33);
      if (below(3) == 0) {  // a prefix of an earlier prompt
        const std::vector<int32_t>& other = list.empty() ? r.prompt : list[rng() % list.size()].prompt;
        const size_t n = std::min(other.size(), r.prompt.size());
        std::copy_n(other.begin(), rng() % (n + 1), r.prompt.begin());
      }
      r.generation.n_predict = below(8) == 0 ? -1 : below(130);
      list.push_back(std::move(r));
    }
    EngineOptions o = options(1 + below(9), kContext + 32 * below(20));
    o.context.n_ubatch = 12 + below(60);
    Runtime runtime(*dense_, {host_.get()}, o);
    Batcher batcher(runtime, 1 + below(9));
    EXPECT_EQ(together(batcher, list), alone(*dense_, list));
  }
}

TEST_F(Batches, FailedAllocationsUseTheLadder) {
  const std::vector<BatchRequest> list = requests(6);
  const std::vector<std::string> expected = alone(*dense_, list);
  EngineOptions o = options(3, 512);
  const auto run = [&](test::SimDevice& sim) {
    o.placement = place(dense_->architecture(), dense_->weights(), {host_.get(), &sim}, {}, OffloadChoice{4});
    Runtime runtime(*dense_, {host_.get(), &sim}, o);
    Batcher batcher(runtime);
    EXPECT_EQ(together(batcher, list), expected);
  };
  test::SimDevice works({});
  o.context.n_ubatch = 64;
  run(works);
  for (int64_t i = 0; i < works.n_allocs(); i += 3) {
    test::SimDevice sim({.fail_alloc = i});
    run(sim);
  }
  for (int64_t i = 0; i < works.n_runs(); i += works.n_runs() / 11) {
    test::SimDevice sim({.fail_run = i});
    run(sim);
  }
  test::SimDevice small({.memory_bytes = works.peak_bytes() / 3});
  run(small);
}

TEST_F(Batches, StopLikeSingleRequests) {
  std::vector<BatchRequest> list = requests(8);
  for (BatchRequest& r : list) r.generation.n_predict = -1;
  const std::vector<std::string> free = alone(*dense_, list);  // until the context is full, or an end token
  // A stop text that spans several tokens, because every token is a byte or a letter.
  list[1].generation.stop = {free[1].substr(9, 5)};
  list[2].generation.stop = {"not to be found", free[2].substr(4, 3), free[2].substr(5, 8)};
  list[3].generation.n_predict = 0;
  list[4].sampling.logit_bias = {{2, std::numeric_limits<float>::infinity()}};  // the end, at once
  std::vector<std::string> expected = alone(*dense_, list);
  EXPECT_NE(expected[1], free[1]);
  EXPECT_THAT(expected[3], HasSubstr("|1|0"));
  EXPECT_THAT(expected[4], HasSubstr("|0|1"));
  Runtime runtime(*dense_, {host_.get()}, options(3));
  Batcher batcher(runtime);
  EXPECT_EQ(together(batcher, list), expected);
}

TEST_F(Batches, ContinueAfterAFailedRequest) {
  std::vector<BatchRequest> list = requests(5);
  std::vector<std::string> expected = alone(*dense_, list);
  for (int32_t id = 0; id < 300; ++id) {
    list[2].sampling.logit_bias.push_back({id, -std::numeric_limits<float>::infinity()});
  }
  Runtime runtime(*dense_, {host_.get()}, options(4));
  Batcher batcher(runtime);
  const std::vector<std::string> answers = together(batcher, list);
  EXPECT_THAT(answers[2], HasSubstr("error: "));
  expected[2] = answers[2];
  EXPECT_EQ(answers, expected);
  EXPECT_EQ(runtime.pool().n_free() > 0, true);
}

TEST_F(Batches, SamplingDoesNotDependOnOtherRequests) {
  std::vector<BatchRequest> list = requests(10);
  for (BatchRequest& r : list) {
    r.sampling = SamplerParams{};
    r.sampling.seed = 40 + r.index;
  }
  const std::vector<std::string> expected = alone(*dense_, list);
  for (int64_t n : {1, 4, 7}) {
    Runtime runtime(*dense_, {host_.get()}, options(n));
    Batcher batcher(runtime);
    EXPECT_EQ(together(batcher, list), expected);
  }
}

}  // namespace
}  // namespace tandem
