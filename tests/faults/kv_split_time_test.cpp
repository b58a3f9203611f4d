// The time of a step with a split cache, in simulated time: both sides compute attention at the same time,
// and the planner predicts it.
#include <gtest/gtest.h>

#include "exec/placed_graph.h"
#include "kv/hot_cache.h"
#include "support/sim_host.h"
#include "support/split_rig.h"

namespace tandem {
namespace {

class KvSplitTime : public test::SplitRig {
 protected:
  static constexpr int64_t kLayers = 6, kContext = 640;

  void SetUp() override {
    test::TinyShape shape;
    shape.n_layer = kLayers;
    model_ = load("tiny.gguf", shape);
  }

  static EngineOptions options(int64_t n_gpu_layers, int64_t n_keep, Toggle stream = Toggle::off) {
    EngineOptions o;
    o.context.n_ctx = kContext;
    o.context.n_ubatch = 32;
    o.offload.n_gpu_layers = n_gpu_layers;
    o.offload.kv_split = n_keep;
    o.offload.stream = stream;
    o.oom_ladder = false;
    return o;
  }

  // The total time of a segment's nodes.
  static double sum(const Segment& segment, const std::function<double(const Node&)>& seconds) {
    double all = 0;
    for (int32_t i : segment.nodes) all += seconds(segment.graph->nodes[static_cast<size_t>(i)]);
    return all;
  }

  std::unique_ptr<Model> model_;
};

TEST_F(KvSplitTime, BothSidesOverlap) {
  struct Times {
    double hot_s, cold_s, rest_s, bus_bytes_per_s;
  };
  // A layer sends a query of 256 bytes down and gets 272 back.
  for (const Times t : {Times{2e-3, 2e-3, 1e-3, 0}, Times{4e-3, 1e-3, 1e-3, 0}, Times{1e-3, 4e-3, 1e-3, 0},
                        Times{3e-3, 2e-3, 1e-3, 1e7}, Times{2e-3, 3e-3, 1e-3, 1e7}}) {
    SCOPED_TRACE(testing::Message() << t.hot_s << " " << t.cold_s << " bus " << t.bus_bytes_per_s);
    double now = 0;
    const auto seconds = [&](const Node& node) {
      if (const auto* attention = std::get_if<AttentionOp>(&node.op)) {
        return attention->part == KvPart::cold ? t.cold_s : t.hot_s;
      }
      return std::holds_alternative<GluOp>(node.op) ? t.rest_s : 0.0;
    };
    test::SimDevice sim(
        {.times = {.bus_bytes_per_s = t.bus_bytes_per_s,
                   .run_s = [&](const Segment& s, const StepShape&) { return sum(s, seconds); },
                   .host_s = &now}});
    test::SimHost host(now, [&](const Segment& s, const StepShape&, double) { return sum(s, seconds); });
    Session session(*model_, {&host, &sim}, options(kLayers + 1, 40));
    session.append(prompt(32));
    decode_one(session);
    double before = now;
    decode_one(session);
    EXPECT_NEAR(now - before, kLayers * (t.hot_s + t.rest_s), 0.1 * kLayers * (t.hot_s + t.rest_s));
    session.append(prompt(200));  // now some tokens are cold
    before = now;
    decode_one(session);
    const double bound = kLayers * (std::max(t.hot_s, t.cold_s) + t.rest_s);
    EXPECT_GE(now - before, 0.999 * bound);
    EXPECT_LE(now - before, 1.1 * bound);
  }
}

// The mean over the steps that move two blocks to the host.
TEST_F(KvSplitTime, MatchesThePrediction) {
  const std::vector<DeviceRates> rates{{5e8, 1e10, 1e12, 1e-6, 1e-7}, {2e9, 1e12, 4e7, 1e-6, 1e-7}};
  for (Toggle stream : {Toggle::off, Toggle::on}) {
    for (int64_t n_gpu_layers : {1, 4, 7}) {
      for (int64_t n_keep : {1, 100, 300}) {
        SCOPED_TRACE(testing::Message() << "-ngl " << n_gpu_layers << " --kv-split " << n_keep
                                        << (stream == Toggle::on ? " streamed" : ""));
        double now = 0;
        StepLoad load;
        KvConfig kv;
        kv.n_ctx = kContext;
        const auto run_s = [&](const Segment& s, const StepShape& shape, const DeviceRates& r) {
          StepLoad step = load;
          step.n_tokens = shape.n_tokens;
          return r.stage_s + sum(s, [&](const Node& node) {
                   return node_seconds(node_work(*s.graph, node, step, kv), r);
                 });
        };
        test::SimDevice sim(
            {.times = {.bus_bytes_per_s = rates[1].bus_bytes_per_s,
                       .run_s = [&](const Segment& s, const StepShape& n) { return run_s(s, n, rates[1]); },
                       .host_s = &now}});
        test::SimHost host(
            now, [&](const Segment& s, const StepShape& n, double) { return run_s(s, n, rates[0]); });
        const std::vector<Device*> devices{&host, &sim};
        Session session(*model_, devices, options(n_gpu_layers, n_keep, stream));
        const Placement& placement = session.placement().placement;
        session.append(prompt(450));
        const SessionGraphs graphs = session_graphs(model_->architecture(), ContextOptions{kContext, 32});
        const Graph graph = placed_graph(graphs.decode, placement);
        const Schedule schedule = make_schedule(graph, placement, 2);
        double measured = 0, predicted = 0;
        for (int i = 0; i < 66; ++i) {
          load.n_past = session.n_past();
          load.hot_from = hot_from_of(graphs.kv, placement.split()->n_blocks, load.n_past + 1);
          ASSERT_GT(load.hot_from, 0);
          const double before = now;
          decode_one(session);
          if (i < 2) continue;
          measured += now - before;
          predicted += step_cost(graph, schedule, devices, rates, graphs.kv, load).seconds;
        }
        EXPECT_NEAR(predicted, measured, 0.05 * measured);
        const Graph prefill = placed_graph(graphs.prefill, placement);
        const Schedule prefill_schedule = make_schedule(prefill, placement, 2);
        measured = predicted = 0;
        load.n_tokens = 24;
        for (int i = 0; i < 4; ++i) {  // three blocks
          load.n_past = session.n_past();
          load.hot_from = hot_from_of(graphs.kv, placement.split()->n_blocks, load.n_past + 24);
          const double before = now;
          session.append(prompt(24));
          measured += now - before;
          predicted += step_cost(prefill, prefill_schedule, devices, rates, graphs.kv, load).seconds;
        }
        EXPECT_NEAR(predicted, measured, 0.05 * measured);
      }
    }
  }
}

}  // namespace
}  // namespace tandem
