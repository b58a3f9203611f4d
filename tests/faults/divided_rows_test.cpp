// Divided rows on simulated devices: a device and the host each compute some rows of the streamed matrices.
// The logits equal the CPU's bit for bit for any share, bytes match the footprint, and failures are clean.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "exec/divide_rows.h"
#include "support/split_rig.h"

namespace tandem {
namespace {

class DividedRows : public test::SplitRig {
 protected:
  static constexpr int64_t kLayers = 6;

  void SetUp() override {
    test::TinyShape shape;
    shape.n_layer = kLayers;
    shape.n_embd = 128;
    shape.n_ff = 416;  // whole strips on one side only
    dense_ = load("dense.gguf", shape);
    test::TinyModel biased = test::tiny_llama(shape, 9);
    for (int64_t i = 0; i < kLayers; ++i) {
      const std::string layer = "blk." + std::to_string(i) + ".";
      const auto seed = static_cast<uint64_t>(1000 + 10 * i);
      biased.add(layer + "attn_q.bias", DType::F32, {128}, seed);
      biased.add(layer + "attn_k.bias", DType::F32, {64}, seed + 1);
      biased.add(layer + "attn_v.bias", DType::F32, {64}, seed + 2);
      biased.add(layer + "attn_output.bias", DType::F32, {128}, seed + 3);
      biased.add(layer + "ffn_gate.bias", DType::F32, {416}, seed + 4);
      biased.add(layer + "ffn_up.bias", DType::F32, {416}, seed + 5);
      biased.add(layer + "ffn_down.bias", DType::F32, {128}, seed + 6);
    }
    biased.write(directory_.path("biased.gguf"));
    biased_ = Model::load(directory_.path("biased.gguf"));
    shape.dtype = DType::Q8_0;
    quantized_ = load("quantized.gguf", shape);
    shape.dtype = DType::F32;
    shape.n_expert = 5;
    shape.n_expert_used = 2;
    moe_ = load("moe.gguf", shape);
  }

  static OffloadChoice choice(int64_t n_gpu_layers, double prefill, double decode) {
    OffloadChoice c;
    c.n_gpu_layers = n_gpu_layers;
    c.streaming = Streaming::always;
    c.rows_prefill = prefill;
    c.rows_decode = decode;
    return c;
  }

  std::unique_ptr<Model> biased_, quantized_;
};

TEST_F(DividedRows, EveryShareGivesTheLogitsOfTheCpu) {
  test::SimDevice sim({.copy_bytes_per_s = 6e8});
  const std::vector<Device*> devices{host_.get(), &sim};
  for (const Model* model : {dense_.get(), biased_.get(), quantized_.get(), moe_.get()}) {
    const std::vector<float> expected = cpu_logits(*model);
    for (int tenths = 1; tenths <= 9; ++tenths) {
      for (const bool kv_on_host : {false, true}) {
        SCOPED_TRACE(format("share 0.{}{}", tenths, kv_on_host ? " -nkvo" : ""));
        // The two programs divide differently.
        OffloadChoice c = choice(tenths % 4, tenths * 0.1, 1 - tenths * 0.1);
        if (kv_on_host) c.cache = CacheOnHost{};
        const auto s = session(*model, devices, c);
        EXPECT_EQ(logits(*s), expected);
        EXPECT_EQ(sim.used_bytes(), s->placement().bytes.devices[1].total());
      }
    }
  }
}

TEST_F(DividedRows, BiasesArePartOfTheResult) {
  EXPECT_NE(cpu_logits(*biased_), cpu_logits(*dense_));
}

TEST_F(DividedRows, AnyNumberOfSlots) {
  test::SimDevice sim({.copy_bytes_per_s = 3e8});
  const std::vector<float> expected = cpu_logits(*dense_);
  for (const size_t n_slots : {1, 2, 3, 20}) {
    const auto s = session(*dense_, {host_.get(), &sim}, choice(2, 0.7, 0.4), n_slots);
    EXPECT_EQ(logits(*s), expected) << n_slots;
  }
}

TEST_F(DividedRows, TwoDevicesDivideEachItsLayers) {
  test::SimDevice sim0({.name = "SIM0", .copy_bytes_per_s = 3e8}),
      sim1({.name = "SIM1", .copy_bytes_per_s = 3e8});
  for (const Model* model : {dense_.get(), moe_.get()}) {
    const auto s = session(*model, {host_.get(), &sim0, &sim1}, choice(3, 0.7, 0.4));
    const uint64_t before0 = sim0.fetched_bytes(), before1 = sim1.fetched_bytes();
    EXPECT_EQ(logits(*s), cpu_logits(*model));
    EXPECT_GT(sim0.fetched_bytes(), before0);
    EXPECT_GT(sim1.fetched_bytes(), before1);
    EXPECT_EQ(sim0.used_bytes(), s->placement().bytes.devices[1].total());
    EXPECT_EQ(sim1.used_bytes(), s->placement().bytes.devices[2].total());
  }
}

TEST_F(DividedRows, WithTheCachePrefetchedAndOnlyInPrefill) {
  test::SimDevice sim({.copy_bytes_per_s = 3e8});
  const std::vector<float> expected = cpu_logits(*dense_);
  OffloadChoice c = choice(2, 0.3, 0.6);
  c.cache = PrefetchedCache{};
  EXPECT_EQ(logits(*session(*dense_, {host_.get(), &sim}, c)), expected);
  c = choice(2, 0.3, 0.6);
  c.streaming = Streaming::prefill;
  EXPECT_EQ(logits(*session(*dense_, {host_.get(), &sim}, c)), expected);
}

// With a split cache the host computes part of the attention; merged results are not bit-identical.
TEST_F(DividedRows, WithASplitCache) {
  test::SimDevice sim({.copy_bytes_per_s = 3e8});
  const auto with_rows = [&](double prefill, double decode) {
    OffloadOptions flags;
    flags.n_gpu_layers = 2;
    flags.stream = Toggle::on;
    flags.kv_split = 32;
    EngineOptions o = options(flags);
    Session sizes(*dense_, {host_.get(), &sim}, o);
    o.placement = sizes.placement().placement;
    for (LayerPlacement& layer : o.placement.layers) {
      for (WeightHome* home : {&layer.weights, &layer.experts}) {
        const std::optional<GpuId> gpu = streamed_to(*home, StepKind::decode);
        if (gpu) *home = InMemory{use_on(*gpu, prefill), use_on(*gpu, decode)};
      }
    }
    Session s(*dense_, {host_.get(), &sim}, o);
    return logits(s);
  };
  EXPECT_EQ(with_rows(0.3, 0.6), with_rows(1, 1));
}

// Layers on disk are not divided; the others are.
TEST_F(DividedRows, WithLayersOnDisk) {
  test::SimDevice sim({.copy_bytes_per_s = 3e8});
  OffloadChoice c = choice(2, 0.3, 0.6);
  c.n_disk_layers = 2;
  const auto s = session(*dense_, {host_.get(), &sim}, c);
  EXPECT_EQ(logits(*s), cpu_logits(*dense_));
  EXPECT_EQ(sim.used_bytes(), s->placement().bytes.devices[1].total());
}

TEST_F(DividedRows, BytesMatchTheFootprint) {
  for (const double share : {0.2, 0.5, 0.8}) {
    for (int64_t n_gpu_layers : {0, 1, 4, 7}) {
      SCOPED_TRACE(format("share {:g}, -ngl {}", share, static_cast<int>(n_gpu_layers)));
      test::SimDevice sim({});
      OffloadOptions flags;
      flags.n_gpu_layers = n_gpu_layers;
      flags.gpu_rows = share;
      Session s(*biased_, {host_.get(), &sim}, options(flags));
      const Footprint& planned = s.placement().bytes;
      logits(s);
      EXPECT_EQ(sim.peak_bytes(), planned.devices[1].total());
      EXPECT_EQ(s.executor().slot_bytes(GpuId(0)), planned.devices[1].staging);
      const uint64_t fetched = sim.fetched_bytes(), copied = sim.copied_bytes();
      decode_one(s);
      const BusBytes& bus = planned.per_token;
      const auto n_blocks = static_cast<uint64_t>((s.n_past() + 31) / 32);
      EXPECT_EQ(sim.fetched_bytes() - fetched, bus.weights);
      EXPECT_EQ(sim.copied_bytes() - copied,
                bus.weights + bus.activations + bus.logits + bus.inputs + bus.inputs_per_block * n_blocks);
    }
  }
}

// The device's slots hold only its share, and the host maps the same weights as before.
TEST_F(DividedRows, TheDeviceFetchesItsShare) {
  test::SimDevice sim({});
  const auto planned = [&](double share) {
    return session(*dense_, {host_.get(), &sim}, choice(0, share, share))->placement().bytes;
  };
  const Footprint whole = planned(1);
  for (const double share : {0.25, 0.5, 0.75}) {
    const Footprint f = planned(share);
    EXPECT_NEAR(static_cast<double>(f.per_token.weights),
                share * static_cast<double>(whole.per_token.weights),
                0.07 * static_cast<double>(whole.per_token.weights));
    EXPECT_NEAR(static_cast<double>(f.devices[1].staging),
                share * static_cast<double>(whole.devices[1].staging),
                0.07 * static_cast<double>(whole.devices[1].staging));
    EXPECT_EQ(f.mapped_weights, whole.mapped_weights);
  }
}

TEST_F(DividedRows, SharesAreWholeStripsOnBothSides) {
  EXPECT_EQ(device_rows(4096, 0.5), 2048);
  EXPECT_EQ(device_rows(4096, 0.4), 1664);
  EXPECT_EQ(device_rows(4096, 0.001), 64);
  EXPECT_EQ(device_rows(4096, 0.999), 4032);
  EXPECT_EQ(device_rows(1000, 0.999), 992);
  EXPECT_EQ(device_rows(63, 0.5), 63);
  EXPECT_EQ(device_rows(64, 0.1), 32);
  EXPECT_EQ(device_rows(4096, 1), 4096);
}

TEST_F(DividedRows, ExplainShowsTheShare) {
  test::SimDevice sim({});
  const std::vector<Device*> devices{host_.get(), &sim};
  OffloadOptions flags;
  flags.n_gpu_layers = 2;
  flags.gpu_rows = 0.4;
  std::string table;
  Session s(*dense_, devices, options(flags), [&](const std::string& text) { table = text; });
  EXPECT_THAT(table,
              testing::HasSubstr("streamed to SIM0, 40% of the rows in prefill and 40% in decoding, the CPU "
                                 "computing the others"));
}

TEST_F(DividedRows, FailedAllocationsAndCopiesAreCleanErrors) {
  const auto run = [&](test::SimDevice& sim) {
    const auto s = session(*biased_, {host_.get(), &sim}, choice(3, 0.7, 0.4));
    s->append(prompt(37));
    decode_one(*s);
    sim.wait_for_all();  // copies for a next step that never happens
  };
  expect_clean_failures(run, 2);
}

TEST_F(DividedRows, AFailedStepLeavesNoWrongData) {
  const std::vector<float> expected = cpu_logits(*dense_);
  test::SimDevice works({});
  logits(*session(*dense_, {host_.get(), &works}, choice(3, 0.7, 0.4)));
  for (int64_t i = works.n_copies() / 2; i < works.n_copies() / 2 + 60; i += 3) {
    test::SimDevice sim({.copy_bytes_per_s = 3e8, .fail_copy = i});
    const auto s = session(*dense_, {host_.get(), &sim}, choice(3, 0.7, 0.4));
    EXPECT_THROW(logits(*s), Error) << i;
    s->truncate(0);
    EXPECT_EQ(logits(*s), expected) << i;
  }
}

// Any allocation or run may fail without changing the text.
TEST_F(DividedRows, TheOutOfMemoryLadderKeepsTheText) {
  const auto text = [&](test::SimDevice& sim) {
    EngineOptions o = options({});
    o.context.n_ubatch = 64;
    o.oom_ladder = true;
    o.placement =
        place(dense_->architecture(), dense_->weights(), {host_.get(), &sim}, {}, choice(3, 0.7, 0.4));
    Session s(*dense_, {host_.get(), &sim}, o);
    std::vector<int32_t> made;
    std::span<const float> logits = s.append(prompt(50));
    while (made.size() < 20) {
      made.push_back(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
      logits = s.append(std::span(&made.back(), 1));
    }
    EXPECT_EQ(sim.used_bytes(), s.placement().bytes.devices[1].total());
    return made;
  };
  test::SimDevice works({});
  const std::vector<int32_t> expected = text(works);
  for (int64_t i = 0; i < works.n_allocs(); ++i) {
    test::SimDevice sim({.fail_alloc = i});
    EXPECT_EQ(text(sim), expected) << "allocation " << i;
  }
  for (int64_t i = 0; i < works.n_runs(); i += works.n_runs() / 23) {
    test::SimDevice sim({.fail_run = i});
    EXPECT_EQ(text(sim), expected) << "run " << i;
  }
}

}  // namespace
}  // namespace tandem
