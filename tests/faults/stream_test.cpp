// Streamed weights on simulated devices: the logits equal the CPU's bit for bit on a bus of any speed, bytes
// match the footprint, failures are clean, and copies overlap with computing as far as possible.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "support/split_rig.h"

namespace tandem {
namespace {

class Stream : public test::SplitRig {
 protected:
  static constexpr int64_t kLayers = 8;

  void SetUp() override { load_both(kLayers); }

  static OffloadOptions streamed(int64_t n_gpu_layers) {
    OffloadOptions flags;
    flags.n_gpu_layers = n_gpu_layers;
    flags.stream = Toggle::on;
    return flags;
  }
};

TEST_F(Stream, EveryModeGivesTheLogitsOfTheCpu) {
  // Slow enough that a segment that does not wait for its weights reads old data.
  test::SimDevice sim({.copy_bytes_per_s = 6e8});
  const std::vector<Device*> devices{host_.get(), &sim};
  for (const Model* model : {dense_.get(), moe_.get()}) {
    const std::vector<float> expected = cpu_logits(*model);
    for (const Streaming streaming : {Streaming::prefill, Streaming::always}) {
      for (int64_t n_gpu_layers : {0, 3, 9}) {
        for (bool kv_on_host : {false, true}) {
          for (int64_t n_cpu_moe : {0, 5}) {
            if (n_cpu_moe > 0 && model == dense_.get()) continue;
            SCOPED_TRACE(std::string(streaming_name(streaming)) + " -ngl " + std::to_string(n_gpu_layers) +
                         (kv_on_host ? " -nkvo" : "") + " --n-cpu-moe " + std::to_string(n_cpu_moe));
            const auto s =
                session(*model, devices,
                        {n_gpu_layers, kv_on_host ? CacheChoice(CacheOnHost{}) : CacheBesideLayers{},
                         n_cpu_moe, streaming});
            EXPECT_EQ(logits(*s), expected);
            EXPECT_EQ(sim.used_bytes(), s->placement().bytes.devices[1].total());
          }
        }
      }
    }
  }
}

TEST_F(Stream, AnyNumberOfSlots) {
  test::SimDevice sim({.copy_bytes_per_s = 3e8});
  const std::vector<Device*> devices{host_.get(), &sim};
  const std::vector<float> expected = cpu_logits(*dense_);
  for (const size_t n_slots : {1, 2, 3, 5, 20}) {
    const auto s = session(*dense_, devices, {2, {}, 0, Streaming::always}, n_slots);
    EXPECT_EQ(logits(*s), expected) << n_slots;
  }
}

TEST_F(Stream, TwoDevicesStreamEachItsLayers) {
  test::SimDevice sim0({.name = "SIM0", .copy_bytes_per_s = 3e8}),
      sim1({.name = "SIM1", .copy_bytes_per_s = 3e8});
  const std::vector<Device*> devices{host_.get(), &sim0, &sim1};
  const auto s = session(*moe_, devices, {3, {}, 0, Streaming::always});
  EXPECT_EQ(logits(*s), cpu_logits(*moe_));
  EXPECT_GT(sim0.fetched_bytes(), 0u);
  EXPECT_GT(sim1.fetched_bytes(), 0u);
}

TEST_F(Stream, BytesMatchTheFootprint) {
  for (int64_t n_gpu_layers : {0, 4, 7, 8, 9}) {
    SCOPED_TRACE(n_gpu_layers);
    test::SimDevice sim({});
    const std::vector<Device*> devices{host_.get(), &sim};
    Session s(*dense_, devices, options(streamed(n_gpu_layers)));
    const size_t planned = s.placement().bytes.devices[1].total();
    logits(s);
    EXPECT_EQ(sim.peak_bytes(), planned);
    EXPECT_EQ(s.executor().slot_bytes(GpuId(0)), s.placement().bytes.devices[1].staging);
    const uint64_t before = sim.fetched_bytes();
    decode_one(s);
    EXPECT_EQ(sim.fetched_bytes() - before, s.placement().bytes.per_token.weights);
    EXPECT_EQ(s.executor().streamed_bytes(), sim.fetched_bytes());
  }
}

TEST_F(Stream, FewLayersAreFetchedOnce) {
  test::SimDevice sim({});
  Session s(*dense_, {host_.get(), &sim}, options(streamed(kLayers - 1)));  // two layers, two slots
  logits(s);
  const uint64_t once = sim.fetched_bytes();
  decode_one(s);
  EXPECT_EQ(sim.fetched_bytes(), once);
  EXPECT_EQ(s.placement().bytes.per_token.weights, 0u);
}

TEST_F(Stream, FailedAllocationsAndCopiesAreCleanErrors) {
  const auto run = [&](test::SimDevice& sim) {
    Session s(*dense_, {host_.get(), &sim}, options(streamed(3)));
    logits(s);
    sim.wait_for_all();  // copies ahead for a next step that never happens
  };
  expect_clean_failures(run);
}

TEST_F(Stream, AFailedStepLeavesNoWrongWeightsBehind) {
  const std::vector<float> expected = cpu_logits(*dense_);
  test::SimDevice works({});
  {
    Session s(*dense_, {host_.get(), &works}, options(streamed(3)));
    logits(s);
  }
  for (int64_t i = works.n_copies() / 2; i < works.n_copies() / 2 + 40; i += 3) {
    test::SimDevice sim({.copy_bytes_per_s = 3e8, .fail_copy = i});
    Session s(*dense_, {host_.get(), &sim}, options(streamed(3)));
    bool failed = false;
    try {
      logits(s);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::io);
      failed = true;
    }
    EXPECT_TRUE(failed) << i;
    s.truncate(0);
    EXPECT_EQ(logits(s), expected) << i;
  }
}

// ---- Page-locked memory ----

class PinnedStream : public Stream {
 protected:
  // All layers streamed for every step, to the given devices.
  std::unique_ptr<Session> pinned_session(const Model& model, const std::vector<Device*>& devices) {
    EngineOptions o = options();
    o.placement = place(model.architecture(), model.weights(), devices, {}, {0, {}, 0, Streaming::always});
    o.placement.pins_fetched = true;
    return std::make_unique<Session>(model, devices, o);
  }
};

// All that a step fetches, after some steps; the first ones fetch as ever.
TEST_F(PinnedStream, BeginsAfterAFewStepsAndEndsWithTheSession) {
  for (const Model* model : {dense_.get(), moe_.get()}) {
    test::SimDevice sim({.copy_bytes_per_s = 6e8}), plain({.copy_bytes_per_s = 6e8});
    auto s = pinned_session(*model, {host_.get(), &sim});
    const auto unpinned = session(*model, {host_.get(), &plain}, {0, {}, 0, Streaming::always});
    for (int round = 0; round < 4; ++round) {
      s->truncate(0);
      unpinned->truncate(0);
      EXPECT_EQ(logits(*s), logits(*unpinned)) << round;
      if (round == 0) {
        EXPECT_GT(sim.fetched_bytes(), 2 * sim.pinned_bytes_fetched());
      }
    }
    const uint64_t fetched = sim.fetched_bytes(), pinned = sim.pinned_bytes_fetched();
    decode_one(*s);
    EXPECT_EQ(sim.fetched_bytes() - fetched, sim.pinned_bytes_fetched() - pinned);
    EXPECT_EQ(s->executor().pinned_bytes(), s->placement().bytes.per_token.weights);
    EXPECT_EQ(plain.pinned_bytes_fetched(), 0u);
    s.reset();
    EXPECT_EQ(sim.n_pinned(), 0u);
  }
}

TEST_F(PinnedStream, GoesOnWithoutWhereTheSystemRefuses) {
  const std::vector<float> expected = cpu_logits(*dense_);
  for (const int64_t n : {0, 1, 5}) {
    test::SimDevice sim({.fail_pin = n});
    const auto s = pinned_session(*dense_, {host_.get(), &sim});
    for (int round = 0; round < 4; ++round) {
      s->truncate(0);
      EXPECT_EQ(logits(*s), expected) << n;
    }
    EXPECT_EQ(sim.n_pinned(), static_cast<size_t>(n));
  }
}

// Each device its layers; what two sessions of a model stream.
TEST_F(PinnedStream, SeveralDevicesAndSessions) {
  test::SimDevice sim0({.name = "SIM0"}), sim1({.name = "SIM1"}), other({});
  const std::vector<float> expected = cpu_logits(*moe_);
  const auto s = pinned_session(*moe_, {host_.get(), &sim0, &sim1});
  auto beside = pinned_session(*moe_, {host_.get(), &other});
  for (int round = 0; round < 4; ++round) {
    for (Session* each : {s.get(), beside.get()}) {
      each->truncate(0);
      EXPECT_EQ(logits(*each), expected) << round;
    }
    if (round == 2) beside = pinned_session(*moe_, {host_.get(), &other});
  }
  EXPECT_GT(sim0.n_pinned(), 0u);
  EXPECT_GT(sim1.n_pinned(), 0u);
}

// What is moved to memory while the CPU computes with it stays what it was: prompts stream, the CPU decodes.
TEST_F(PinnedStream, TheCpuComputesWithWhatIsPinned) {
  test::SimDevice sim({.copy_bytes_per_s = 6e8});
  const std::vector<Device*> devices{host_.get(), &sim};
  EngineOptions o = options();
  o.placement = place(dense_->architecture(), dense_->weights(), devices, {}, {2, {}, 0, Streaming::prefill});
  o.placement.pins_fetched = true;
  Session s(*dense_, devices, o);
  const std::vector<float> expected = cpu_logits(*dense_);
  for (int round = 0; round < 6; ++round) {
    s.truncate(0);
    EXPECT_EQ(logits(s), expected) << round;
  }
  EXPECT_GT(sim.pinned_bytes_fetched(), 0u);
  EXPECT_EQ(cpu_logits(*dense_), expected);
}

// ---- Time ----

// A decoded token in simulated time: computing a layer takes compute_s, and copying its weights copy_s.
class StreamTime : public Stream {
 protected:
  struct Times {
    double compute_s, copy_s;
  };
  struct Step {
    double seconds = 0, copied_layers = 0;
  };

  Step decode_step(const Times& t, int64_t n_gpu_layers, size_t n_slots) {
    size_t layer_bytes = 0;
    for (const Weight& w : dense_->weights()) layer_bytes += w.layer == 1 && w.n_rows > 1 ? w.n_bytes() : 0;
    test::SimDevice sim({.times = {.bus_bytes_per_s = static_cast<double>(layer_bytes) / t.copy_s,
                                   .run_s = [&t](const Segment& segment, const StepShape&) {
                                     int n_glu = 0;  // one per layer
                                     for (int32_t i : segment.nodes) {
                                       n_glu += std::holds_alternative<GluOp>(
                                           segment.graph->nodes[static_cast<size_t>(i)].op);
                                     }
                                     return n_glu * t.compute_s;
                                   }}});
    const auto s = session(*dense_, {host_.get(), &sim}, {n_gpu_layers, {}, 0, Streaming::always}, n_slots);
    for (int i = 0; i < 3; ++i) decode_one(*s);
    const double before = sim.host_s();
    const uint64_t fetched = sim.fetched_bytes();
    decode_one(*s);
    return {sim.host_s() - before,
            static_cast<double>(sim.fetched_bytes() - fetched) / static_cast<double>(layer_bytes)};
  }
};

// A token takes the longer of computing and copying, plus one layer: also with resident layers between
// streamed ones, and for any number of them.
TEST_F(StreamTime, CopiesOverlapWithComputing) {
  for (const size_t n_slots : {2, 3}) {
    for (const Times t :
         {Times{1e-3, 1e-3}, Times{1e-3, 4e-3}, Times{4e-3, 1e-3}, Times{2e-3, 3e-3}, Times{3e-3, 4e-3},
          Times{4e-3, 3e-3}, Times{1e-3, 2e-3}, Times{4e-3, 5e-3}, Times{5e-3, 4e-3}, Times{1e-3, 8e-3}}) {
      for (int64_t n_gpu_layers = 1; n_gpu_layers <= kLayers; ++n_gpu_layers) {
        SCOPED_TRACE(format("compute {:g} ms, copy {:g} ms, -ngl {}, {} slots", t.compute_s * 1e3,
                            t.copy_s * 1e3, static_cast<int>(n_gpu_layers), n_slots));
        const Step step = decode_step(t, n_gpu_layers, n_slots);
        const double longer = std::max(kLayers * t.compute_s, step.copied_layers * t.copy_s);
        EXPECT_LE(step.seconds, 1.1 * (longer + std::max(t.compute_s, t.copy_s)));
        EXPECT_GE(step.seconds, 0.999 * longer);
      }
    }
  }
}

// The planner's prediction against the simulated time of execution, for every placement.
TEST_F(StreamTime, MatchesThePrediction) {
  std::vector<DeviceRates> rates{{1e12, 1e15, 1e12, 0, 0},
                                 {2e9, 1e12, 4e7, 1e-6, 1e-7}};  // the host takes no time
  rates[1].pinned_bytes_per_s = 9e7;
  for (const Model* model : {dense_.get(), moe_.get()}) {
    for (const Streaming streaming : {Streaming::none, Streaming::prefill, Streaming::always}) {
      for (int64_t n_gpu_layers : {1, 4, 9}) {
        for (const auto& [prefetched, pinned] :
             {std::pair(false, false), std::pair(true, false), std::pair(true, true)}) {
          SCOPED_TRACE(std::string(streaming_name(streaming)) + " -ngl " + std::to_string(n_gpu_layers) +
                       (prefetched ? " cache prefetched" : "") + (pinned ? " pinned" : ""));
          StepLoad load;
          KvConfig kv;
          kv.n_ctx = 128;
          test::SimDevice sim({.times = {.bus_bytes_per_s = rates[1].bus_bytes_per_s,
                                         .pinned_bytes_per_s = rates[1].pinned_bytes_per_s,
                                         .run_s = [&](const Segment& segment, const StepShape& shape) {
                                           double seconds = rates[1].stage_s;
                                           for (int32_t i : segment.nodes) {
                                             const Node& node = segment.graph->nodes[static_cast<size_t>(i)];
                                             StepLoad step = load;
                                             step.n_tokens = shape.n_tokens;
                                             seconds += node_seconds(
                                                 node_work(*segment.graph, node, step, kv), rates[1]);
                                           }
                                           return seconds;
                                         }}});
          const std::vector<Device*> devices{host_.get(), &sim};
          EngineOptions o = options();
          o.placement = place(model->architecture(), model->weights(), devices, {},
                              {n_gpu_layers, prefetched ? CacheChoice(PrefetchedCache{}) : CacheBesideLayers{},
                               0, streaming});
          o.placement.pins_fetched = pinned;
          const auto s = std::make_unique<Session>(*model, devices, o);
          for (int i = 0; i < (pinned ? 12 : 3); ++i) decode_one(*s);
          load.n_past = s->n_past();
          const double before = sim.host_s();
          decode_one(*s);
          const double measured = sim.host_s() - before;

          PlanRequest request{model->architecture(), model->weights(), devices, {}, ContextOptions{128, 16}};
          const SessionGraphs graphs = session_graphs(model->architecture(), request.shape);
          const Placement& placement = s->placement().placement;
          const Schedule schedule = make_schedule(graphs.decode, placement, 2);
          const double predicted =
              step_cost(graphs.decode, schedule, devices, rates, graphs.kv, load).seconds;
          EXPECT_NEAR(predicted, measured, 0.05 * measured);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem
