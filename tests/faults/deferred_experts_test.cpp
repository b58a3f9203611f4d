// Deferred experts: wherever experts are, in memory, on a GPU, in both or on disk, logits are those of the CPU with as many
// deferred; a GPU computes attention meanwhile; what cannot be deferred is refused. What deferring means is tested against
// transformers, with the family qwen3_moe_deferred.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/setting.h"
#include "engine/session_file.h"
#include "exec/expert_cache.h"
#include "exec/expert_store.h"
#include "exec/placed_graph.h"
#include "plan/cost.h"
#include "plan/fit.h"
#include "plan/session_plan.h"
#include "support/split_rig.h"

namespace tandem {
namespace {

using testing::HasSubstr;

class DeferredExperts : public test::SplitRig {
 protected:
  static constexpr int64_t kLayers = 5, kExperts = 12, kUsed = 4;

  void SetUp() override {
    test::TinyShape shape;
    shape.n_layer = kLayers;
    shape.n_expert = kExperts;
    shape.n_expert_used = kUsed;
    model_ = load("model.gguf", shape);
  }
  static EngineOptions deferring(int64_t n) {
    EngineOptions o = options({}, DType::F32);
    o.context.n_ctx = 256;
    o.context.n_deferred = n;
    return o;
  }
  Placement placement(const std::vector<Device*>& devices, const OffloadChoice& choice) {
    return place(model_->architecture(), model_->weights(), devices, {}, choice);
  }
  std::unique_ptr<Session> session(const std::vector<Device*>& devices, const OffloadChoice& choice,
                                   int64_t n) {
    EngineOptions o = deferring(n);
    o.placement = placement(devices, choice);
    return std::make_unique<Session>(*model_, devices, o);
  }
  static void expect_near(std::span<const float> got, std::span<const float> expected) {
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 2e-5f) << i;
  }

  std::unique_ptr<Model> model_;
};

TEST_F(DeferredExperts, TheSameLogitsWhereverTheyAre) {
  const std::vector<float> all_at_once = cpu_logits(*model_, deferring(0));
  for (const int64_t n : {1, 2, 3}) {
    const std::vector<float> expected = cpu_logits(*model_, deferring(n));
    EXPECT_NE(expected, all_at_once);
    for (const int64_t n_cpu_moe : {0, 2, 5}) {
      for (const int64_t n_cached : {0, 5}) {
        for (const Streaming streaming : {Streaming::none, Streaming::prefill, Streaming::always}) {
          SCOPED_TRACE(format("{} deferred, {} layers' experts on the host, {} kept, {}", n, n_cpu_moe,
                              n_cached, streaming_name(streaming)));
          test::SimDevice sim({});
          const OffloadChoice choice{.n_gpu_layers = kLayers + 1,
                                     .n_cpu_moe = n_cpu_moe,
                                     .streaming = streaming,
                                     .n_cached_experts = n_cached,
                                     .fetched_experts = 0.5,
                                     .kept_experts = 1};
          const auto s = session({host_.get(), &sim}, choice, n);
          expect_near(logits(*s), expected);
          s->truncate(0);
          expect_near(logits(*s), expected);
          const auto& counts = s->executor().expert_cache().counts();
          const bool caches = n_cached > 0 && n_cpu_moe > 0 && streaming != Streaming::always;
          const int64_t n_used = caches ? 2 * 3 * n_cpu_moe * kUsed : 0;
          EXPECT_EQ(counts.n_used, static_cast<uint64_t>(n_used));
        }
      }
    }
  }
}

TEST_F(DeferredExperts, OnDisk) {
  const std::vector<float> expected = cpu_logits(*model_, deferring(2));
  for (const int64_t n_disk : {int64_t{1}, kLayers}) {
    const auto s =
        session({host_.get()},
                {.n_disk_layers = n_disk, .chosen_experts = n_disk == 1, .n_expert_bytes = 1 << 20}, 2);
    EXPECT_EQ(logits(*s), expected);
    EXPECT_EQ(s->executor().experts().counts().n_used > 0, n_disk == 1);
  }
}

// Nodes of the decode step on the host, between a layer's attention and its first experts.
TEST_F(DeferredExperts, TheHostComputesThemWhileTheGpuComputesAttention) {
  test::SimDevice sim({});
  const std::vector<Device*> devices{host_.get(), &sim};
  const Placement split = placement(devices, {.n_gpu_layers = kLayers + 1, .n_cpu_moe = kLayers});
  ContextOptions context{256, 16};
  context.n_deferred = 2;
  const SessionGraphs graphs = session_graphs(model_->architecture(), context);
  const PlacedGraph placed(graphs.decode, split);
  const Schedule schedule = make_schedule(*placed, split, 2);
  // [segment] the layer of its deferred experts; -1: it has none.
  std::vector<int> deferred;
  for (const PlacedSegment& segment : schedule.partition.segments) {
    deferred.push_back(-1);
    for (const int32_t i : segment.nodes) {
      const Node& node = (*placed).nodes[static_cast<size_t>(i)];
      const auto* op = std::get_if<MoeFfnOp>(&node.op);
      if (op && op->joins_later) deferred.back() = node.layer;
    }
  }
  EXPECT_EQ(std::ranges::count_if(deferred, [](int layer) { return layer >= 0; }), kLayers - 1);
  // Issued to the GPU before: the attention of the layer after.
  int attends = -1;
  for (const Command& c : schedule.commands) {
    if (c.kind != CommandKind::run) continue;
    if (deferred[c.segment] >= 0) {
      EXPECT_TRUE(c.device.is_host());
      EXPECT_EQ(attends, deferred[c.segment] + 1);
      EXPECT_EQ(schedule.partition.segments[c.segment].nodes.size(), 1u);
    }
    for (const int32_t i : schedule.partition.segments[c.segment].nodes) {
      const Node& node = (*placed).nodes[static_cast<size_t>(i)];
      if (std::holds_alternative<AttentionOp>(node.op)) attends = node.layer;
    }
  }
  // On the host alone nothing is moved.
  const Placement alone = Placement::host_only(kLayers);
  const PlacedGraph unmoved(graphs.decode, alone);
  const auto same = [](const Node& a, const Node& b) { return a.output == b.output && a.layer == b.layer; };
  EXPECT_TRUE(std::ranges::equal((*unmoved).nodes, graphs.decode.nodes, same));
}

// Attention takes as long as the deferred experts: only what is not hidden behind the other is left.
TEST_F(DeferredExperts, ThePredictionKnowsWhatOverlaps) {
  test::SimDevice sim({});
  const std::vector<Device*> devices{host_.get(), &sim};
  const Placement split = placement(devices, {.n_gpu_layers = kLayers + 1, .n_cpu_moe = kLayers});
  const auto seconds = [&](int64_t n) {
    ContextOptions context{256, 16};
    context.n_deferred = n;
    const SessionGraphs graphs = session_graphs(model_->architecture(), context);
    const DeviceRates host{.read_bytes_per_s = 1e8, .ops_per_s = 1e12, .memory_bytes_per_s = 1e12};
    const DeviceRates gpu{.read_bytes_per_s = 1e8, .ops_per_s = 1e12, .bus_bytes_per_s = 1e12};
    const std::vector<DeviceRates> rates{host, gpu};
    const DeviceModels models{host_.get(), &sim};
    const StepLoad load{.n_tokens = 1, .n_past = 100};
    const PlacedGraph placed(graphs.decode, split);
    return step_cost(*placed, make_schedule(*placed, split, 2), models, rates, graphs.kv, load).seconds;
  };
  const double at_once = seconds(0), one_later = seconds(1), two_later = seconds(2);
  // One expert: 3 matrices of 64 x 96 floats at 100 MB/s, in all layers but the last.
  const double of_one = 3 * 64 * 96 * sizeof(float) / 1e8;
  EXPECT_LT(one_later, at_once);
  EXPECT_GE(one_later, at_once - (kLayers - 1) * of_one - 1e-9);
  EXPECT_LT(two_later, at_once);
}

// What a cache holds depends on how many are deferred.
TEST_F(DeferredExperts, ASavedSessionGoesOnWithAsMany) {
  const std::string file = directory_.path("saved");
  const auto open = [&](int64_t n) {
    return std::make_unique<Session>(*model_, std::vector<Device*>{host_.get()}, deferring(n));
  };
  const auto refusal = [&](int64_t n) -> std::string {
    try {
      const auto session = open(n);
      const SessionFile saved(file, *session);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
      return write_settings(e.message(), library_setting_text);
    }
    return "";
  };
  const auto saver = open(2);
  logits(*saver);
  save_session(*saver, file);
  EXPECT_EQ(refusal(2), "");
  EXPECT_THAT(refusal(1), HasSubstr("saved with n_deferred=2, and this session has n_deferred=1"));
  EXPECT_THAT(refusal(0), HasSubstr("saved with n_deferred=2, and this session has n_deferred=0"));
  const auto without = open(0);
  logits(*without);
  save_session(*without, file);
  EXPECT_EQ(refusal(0), "");
  EXPECT_THAT(refusal(3), HasSubstr("saved with n_deferred=0, and this session has n_deferred=3"));
}

TEST_F(DeferredExperts, Refused) {
  const auto refusal = [&](const Model& model, int64_t n) -> std::string {
    try {
      Session s(model, {host_.get()}, deferring(n));
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(refusal(*model_, kUsed - 1), "");
  EXPECT_THAT(refusal(*model_, kUsed), HasSubstr("a token of this model uses 4 experts"));
  EXPECT_THAT(refusal(*model_, 1000000), HasSubstr("a token of this model uses 4 experts"));
  load_both(2);
  EXPECT_THAT(refusal(*dense_, 1), HasSubstr("this model has no experts that can be deferred"));
}

}  // namespace
}  // namespace tandem
