// Caches in host memory, prefetched to a simulated device for every step: the logits equal the CPU's bit for
// bit with every cache type, with and without streamed weights; bytes match the footprint; failures are
// clean.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "support/split_rig.h"

namespace tandem {
namespace {

class KvPrefetch : public test::SplitRig {
 protected:
  static constexpr int64_t kLayers = 5;

  void SetUp() override {
    test::TinyShape shape;
    shape.n_layer = kLayers;
    shape.n_head = 2;  // heads of 32: whole blocks of the quantized cache types
    model_ = load("tiny.gguf", shape);
  }

  static OffloadOptions prefetched(int64_t n_gpu_layers, Toggle stream = Toggle::off) {
    OffloadOptions flags;
    flags.n_gpu_layers = n_gpu_layers;
    flags.kv_prefetched = true;
    flags.stream = stream;
    return flags;
  }

  // Logits after a prompt, some decoded tokens, and a second prompt that replaces some of them.
  static std::vector<float> logits(Session& session) {
    std::vector<float> all;
    const auto add = [&](std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); };
    const std::vector<int32_t> ids = prompt(71);
    add(session.append(ids));
    for (int32_t id : {5, 280, 33}) add(session.append(std::span(&id, 1)));
    session.truncate(40);
    add(session.append(std::span(ids).first(19)));
    return all;
  }

  std::vector<float> cpu_logits(DType cache) {
    Session session(*model_, {host_.get()}, options({}, cache));
    return logits(session);
  }

  std::unique_ptr<Model> model_;
};

TEST_F(KvPrefetch, EveryModeAndCacheTypeGivesTheLogitsOfTheCpu) {
  test::SimDevice sim({.copy_bytes_per_s = 3e8});
  const std::vector<Device*> devices{host_.get(), &sim};
  for (DType cache : {DType::F32, DType::F16, DType::Q8_0, DType::Q4_0, DType::IQ4_NL}) {
    const std::vector<float> expected = cpu_logits(cache);
    for (Toggle stream : {Toggle::off, Toggle::on}) {
      for (int64_t n_gpu_layers : {1, 3, 6}) {
        SCOPED_TRACE(std::string(dtype_name(cache)) + " -ngl " + std::to_string(n_gpu_layers) +
                     (stream == Toggle::on ? " streamed" : ""));
        Session s(*model_, devices, options(prefetched(n_gpu_layers, stream), cache));
        EXPECT_EQ(logits(s), expected);
        EXPECT_EQ(sim.used_bytes(), s.placement().bytes.devices[1].total());
        EXPECT_EQ(s.placement().bytes.devices[1].kv, 0u);
      }
    }
  }
}

// A cache on the host, which decodes, is brought for the steps of prompts.
TEST_F(KvPrefetch, ForPromptsAloneIfTheHostDecodes) {
  test::SimDevice sim({.copy_bytes_per_s = 3e8});
  const std::vector<Device*> devices{host_.get(), &sim};
  for (const DType cache : {DType::F16, DType::Q8_0}) {
    const std::vector<float> expected = cpu_logits(cache);
    for (const Toggle stream : {Toggle::off, Toggle::on}) {
      OffloadOptions flags;
      flags.n_gpu_layers = 3;
      flags.kv_on_host = Toggle::on;
      flags.stream = stream;
      Session s(*model_, devices, options(flags, cache));
      EXPECT_EQ(s.placement().choice.cache, CacheChoice(CacheOnHost{true}));
      EXPECT_EQ(logits(s), expected);
      EXPECT_EQ(sim.used_bytes(), s.placement().bytes.devices[1].total());
      if (stream == Toggle::on) continue;
      const uint64_t before = sim.fetched_bytes();
      decode_one(s);
      EXPECT_EQ(sim.fetched_bytes(), before);
      s.append(prompt(33));
      EXPECT_GT(sim.fetched_bytes(), before);
    }
  }
}

// So is the part of the layers that are on the host, if their weights are brought for prompts too; the others' stays on the GPU.
TEST_F(KvPrefetch, ForPromptsTheHostsLayersAlone) {
  for (const DType cache : {DType::F16, DType::Q8_0, DType::KIVI2}) {
    const std::vector<float> expected = cpu_logits(cache);
    for (const int64_t n_gpu_layers : {0, 2, 4}) {
      SCOPED_TRACE(std::string(dtype_name(cache)) + " -ngl " + std::to_string(n_gpu_layers));
      uint64_t fetched[2];
      for (const bool for_prompts : {false, true}) {
        test::SimDevice sim({.copy_bytes_per_s = 3e8});
        const std::vector<Device*> devices{host_.get(), &sim};
        EngineOptions o = options({}, cache);
        o.placement = place(model_->architecture(), model_->weights(), devices, {},
                            {n_gpu_layers, CacheBesideLayers{for_prompts}, 0, Streaming::prefill});
        Session s(*model_, devices, o);
        EXPECT_EQ(logits(s), expected);
        EXPECT_EQ(sim.used_bytes(), s.placement().bytes.devices[1].total());
        const uint64_t before = sim.fetched_bytes();
        decode_one(s);
        EXPECT_EQ(sim.fetched_bytes(), before);
        s.append(prompt(33));
        fetched[for_prompts] = sim.fetched_bytes() - before;
        for (size_t layer = 0; layer < kLayers; ++layer) {
          const KvHome& home = o.placement.layers[layer].kv;
          const bool on_gpu = static_cast<int64_t>(layer) >= kLayers - n_gpu_layers;
          EXPECT_EQ(holder(home).is_host(), !on_gpu);
          EXPECT_EQ(attends_on(home, StepKind::prefill).is_host(), !on_gpu && !for_prompts);
          EXPECT_EQ(attends_on(home, StepKind::decode).is_host(), !on_gpu);
        }
      }
      EXPECT_GT(fetched[true], fetched[false]);
    }
  }
}

// With memory for everything but the slots.
TEST_F(KvPrefetch, NotForPromptsWhereTheGpuHasNoRoom) {
  test::SimDevice sim({});
  const std::vector<Device*> devices{host_.get(), &sim};
  OffloadOptions flags;
  flags.n_gpu_layers = 6;
  flags.kv_on_host = Toggle::on;
  EngineOptions o = options(flags);
  Session with(*model_, devices, o);
  const size_t n_slots = with.executor().slot_bytes(GpuId(0));
  EXPECT_GT(n_slots, 0u);
  o.offload.budgets.max_vram = with.placement().bytes.devices[1].total() - 1 + o.offload.budgets.vram_overhead;
  Session without(*model_, devices, o);
  EXPECT_EQ(without.placement().choice.cache, CacheChoice(CacheOnHost{}));
  EXPECT_EQ(without.executor().slot_bytes(GpuId(0)), 0u);
  EXPECT_EQ(logits(without), cpu_logits(DType::F16));
}

TEST_F(KvPrefetch, TwoDevices) {
  test::SimDevice sim0({.name = "SIM0", .copy_bytes_per_s = 3e8}),
      sim1({.name = "SIM1", .copy_bytes_per_s = 3e8});
  Session s(*model_, {host_.get(), &sim0, &sim1}, options(prefetched(6)));
  EXPECT_EQ(logits(s), cpu_logits(DType::F16));
  EXPECT_GT(sim0.fetched_bytes(), 0u);
  EXPECT_GT(sim1.fetched_bytes(), 0u);
}

TEST_F(KvPrefetch, BytesMatchTheFootprint) {
  test::SimDevice sim({});
  Session s(*model_, {host_.get(), &sim}, options(prefetched(6)));
  logits(s);
  const Footprint& planned = s.placement().bytes;
  EXPECT_EQ(sim.peak_bytes(), planned.devices[1].total());
  EXPECT_EQ(s.executor().slot_bytes(GpuId(0)), planned.devices[1].staging);
  const uint64_t fetched = sim.fetched_bytes(), copied = sim.copied_bytes();
  decode_one(s);
  const auto n_blocks = static_cast<uint64_t>((s.n_past() + 31) / 32);
  const BusBytes& bus = planned.per_token;
  EXPECT_EQ(sim.fetched_bytes() - fetched, n_blocks * bus.kv_in_per_block);
  EXPECT_EQ(sim.copied_bytes() - copied, n_blocks * (bus.kv_in_per_block + bus.inputs_per_block) +
                                             bus.kv_out + bus.activations + bus.logits + bus.inputs);
}

// The used part of the caches is page-locked after some steps; where the system refuses, nothing changes.
TEST_F(KvPrefetch, CachesOftenFetchedArePinned) {
  for (const DType dtype : {DType::F16, DType::Q8_0, DType::KIVI2}) {
    for (const int64_t fail : {-1, 3}) {
      test::SimDevice sim({.copy_bytes_per_s = 3e8, .fail_pin = fail});
      Session s(*model_, {host_.get(), &sim}, options(prefetched(6), dtype));
      const std::vector<float> expected = cpu_logits(dtype);
      for (int round = 0; round < 6; ++round) {
        s.truncate(0);
        EXPECT_EQ(logits(s), expected) << dtype_name(dtype) << " " << round;
      }
      EXPECT_GT(sim.pinned_bytes_fetched(), 0u);
      if (fail > 0) {
        EXPECT_EQ(sim.n_pinned(), 3u);
      }
    }
  }
}

TEST_F(KvPrefetch, FailedAllocationsAndCopiesAreCleanErrors) {
  const auto run = [&](test::SimDevice& sim) {
    Session s(*model_, {host_.get(), &sim}, options(prefetched(4)));
    logits(s);
  };
  expect_clean_failures(run, 3);
}

TEST_F(KvPrefetch, FetchesOverlapWithComputing) {
  // A layer computes for as long as its cache is fetched, so a step takes the time of all layers and one
  // more.
  constexpr double kLayerS = 1e-3;
  const auto seconds = [&](double bus_bytes_per_s) {
    test::SimDevice sim({.times = {.bus_bytes_per_s = bus_bytes_per_s,
                                   .run_s = [&](const Segment& segment, const StepShape&) {
                                     double sum = 0;
                                     for (int32_t i : segment.nodes) {
                                       const Op& op = segment.graph->nodes[static_cast<size_t>(i)].op;
                                       sum += std::holds_alternative<GluOp>(op) ? kLayerS : 0;
                                     }
                                     return sum;
                                   }}});
    Session s(*model_, {host_.get(), &sim}, options(prefetched(6)));
    logits(s);
    const double before = sim.host_s();
    const int32_t id = 9;
    s.append(std::span(&id, 1));
    return sim.host_s() - before;
  };
  Session sizes(*model_, {host_.get()}, options({}));
  const double layer_bytes =
      2 * 2 * 2 * 32 * 32 * 2;  // two blocks of keys and values, two heads of 32 halves
  const double fast = seconds(0), even = seconds(layer_bytes / kLayerS);
  EXPECT_NEAR(fast, kLayers * kLayerS, 1e-9);
  EXPECT_LE(even, 1.1 * (kLayers + 1) * kLayerS +
                      kLayers * kLayerS / 2);  // plus half a cache copied back, not overlapped
  EXPECT_GT(even, fast);
}

}  // namespace
}  // namespace tandem
