// The out-of-memory ladder: any allocation or run may fail without changing the text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "base/log.h"
#include "support/split_rig.h"

namespace tandem {
namespace {

using testing::HasSubstr;

class Ladder : public test::SplitRig {
 protected:
  static constexpr int kPrompt = 100, kTokens = 200;

  void SetUp() override {
    test::TinyShape shape;
    shape.n_layer = 3;
    model_ = load("tiny.gguf", shape);
  }

  EngineOptions options(bool streamed) const {
    EngineOptions o;
    o.context.n_ctx = kPrompt + kTokens;
    o.context.n_ubatch = 64;
    OffloadOptions flags;
    if (streamed) flags.stream = Toggle::on;
    o.placement = place(model_->architecture(), model_->weights(), {host_.get(), sim_any_.get()}, flags,
                        streamed ? 1 : 4);
    return o;
  }

  // Greedy tokens.
  static std::vector<int32_t> text(Session& session) {
    std::vector<int32_t> made;
    std::span<const float> logits = session.append(prompt(kPrompt));
    while (made.size() < kTokens) {
      made.push_back(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
      logits = session.append(std::span(&made.back(), 1));
    }
    return made;
  }

  std::vector<int32_t> run(test::SimDevice& sim, const EngineOptions& o) {
    Session session(*model_, {host_.get(), &sim}, o);
    std::vector<int32_t> made = text(session);
    EXPECT_EQ(sim.used_bytes(), session.placement().bytes.devices[1].total());
    return made;
  }

  std::unique_ptr<test::SimDevice> sim_any_ = std::make_unique<test::SimDevice>(test::SimOptions{});
  std::unique_ptr<Model> model_;
};

TEST_F(Ladder, EveryAllocationMayFail) {
  for (bool streamed : {false, true}) {
    test::SimDevice works({});
    const std::vector<int32_t> expected = run(works, options(streamed));
    ASSERT_GT(works.n_allocs(), 5);
    for (int64_t i = 0; i < works.n_allocs(); ++i) {
      test::SimDevice sim({.fail_alloc = i});
      EXPECT_EQ(run(sim, options(streamed)), expected) << "allocation " << i;
    }
  }
}

TEST_F(Ladder, AnyRunMayFail) {
  for (bool streamed : {false, true}) {
    test::SimDevice works({});
    const std::vector<int32_t> expected = run(works, options(streamed));
    for (int64_t i = 0; i < works.n_runs(); i += works.n_runs() / 23) {
      test::SimDevice sim({.fail_run = i});
      EXPECT_EQ(run(sim, options(streamed)), expected) << "run " << i;
    }
  }
}

TEST_F(Ladder, TheCacheMovesInTheMiddleOfAText) {
  EngineOptions o = options(false);
  o.context.n_ubatch = 32;  // the ladder's minimum, so that the cache is next
  test::SimDevice works({});
  const std::vector<int32_t> expected = run(works, o);
  EXPECT_GT(std::set<int32_t>(expected.begin(), expected.end()).size(),
            5u);  // a text varied enough to show errors
  test::SimDevice sim({.fail_run = works.n_runs() / 2});
  Session session(*model_, {host_.get(), &sim}, o);
  EXPECT_EQ(text(session), expected);
  for (const LayerPlacement& layer : session.placement().placement.layers) {
    EXPECT_EQ(layer.kv, KvHome(ResidentKv{DeviceId::host()}));
    EXPECT_EQ(layer.weights, WeightHome(Resident{GpuId(0)}));
  }
}

// Less and less memory: every rung of the ladder, down to a device that can hold nothing.
TEST_F(Ladder, AnyAmountOfMemory) {
  test::SimDevice works({});
  const std::vector<int32_t> expected = run(works, options(false));
  const std::string log = directory_.path("log");
  for (size_t parts = 8; parts-- > 0;) {
    test::SimDevice sim({.memory_bytes = works.peak_bytes() * parts / 8});
    set_log_file(log);
    EXPECT_EQ(run(sim, options(false)), expected) << parts;
  }
  std::ifstream file(log);
  const std::string lines((std::istreambuf_iterator<char>(file)), {});
  for (const char* said : {"the micro-batch goes from 64 tokens to 32", "the KV cache goes to host memory",
                           "layers go to the host", "the rest goes to the host too"}) {
    EXPECT_THAT(lines, HasSubstr(said));
  }
}

TEST_F(Ladder, CanBeDisabled) {
  EngineOptions o = options(false);
  o.oom_ladder = false;
  test::SimDevice none({.memory_bytes = 4096});
  try {
    run(none, o);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::out_of_memory);
  }
  test::SimDevice later({.fail_run = 50});
  EXPECT_THROW(run(later, o), Error);
}

}  // namespace
}  // namespace tandem
