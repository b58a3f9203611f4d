// Layers on disk: wherever they are computed, the logits equal those of a model in memory bit for bit; bytes
// match the footprint; and a model several times larger than memory runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/log.h"
#include "base/setting.h"
#include "gguf/split_writer.h"
#include "support/metered_host.h"
#include "support/sim_disk.h"
#include "support/split_rig.h"

namespace tandem {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Disk : public test::SplitRig {
 protected:
  static constexpr int64_t kLayers = 16;

  void SetUp() override { load_both(kLayers); }

  EngineOptions options(const OffloadOptions& flags = {}) {
    EngineOptions o;
    o.context.n_ctx = 64;
    o.context.n_ubatch = 16;
    o.offload = flags;
    o.oom_ladder = false;
    o.open_disk = [this](std::vector<DiskFile> files) {
      return std::make_unique<test::SimDisk>(std::move(files), disk_);
    };
    return o;
  }

  // A session placed by `choice`, without the planner.
  std::unique_ptr<Session> session(const Model& model, const std::vector<Device*>& devices,
                                   const OffloadChoice& choice, const OffloadOptions& flags = {}) {
    EngineOptions o = options();
    o.placement = place(model.architecture(), model.weights(), devices, flags, choice);
    return std::make_unique<Session>(model, devices, o);
  }

  std::vector<float> cpu_logits(const Model& model) { return SplitRig::cpu_logits(model, options()); }

  // Memory of every device, and reads for one more token, match the footprint.
  static void expect_as_planned(Session& session, const test::MeteredHost& host) {
    const Footprint& bytes = session.placement().bytes;
    EXPECT_EQ(host.used_bytes(), bytes.devices[0].total() - bytes.devices[0].scratch);
    EXPECT_EQ(session.executor().slot_bytes(DeviceId::host()), bytes.devices[0].staging);
    const uint64_t before = session.executor().disk_bytes();
    decode_one(session);
    EXPECT_EQ(session.executor().disk_bytes() - before, bytes.per_token.disk);
  }

  test::SimDiskOptions disk_;
};

TEST_F(Disk, OnTheCpu) {
  for (const Model* model : {dense_.get(), moe_.get()}) {
    const std::vector<float> expected = cpu_logits(*model);
    for (int64_t n_disk : {1, 2, 3, 9, 16}) {
      SCOPED_TRACE(n_disk);
      test::MeteredHost host;
      const auto s = session(*model, {&host}, {.n_disk_layers = n_disk});
      EXPECT_EQ(logits(*s), expected);
      expect_as_planned(*s, host);
      EXPECT_EQ(s->placement().bytes.per_token.disk > 0, n_disk > 2);  // two layers fit in the two slots
    }
  }
}

TEST_F(Disk, EveryPlacement) {
  // Slow enough that a segment that does not wait for its weights reads old data.
  test::SimDevice sim({.copy_bytes_per_s = 1e9});
  const Model* const models[] = {dense_.get(), moe_.get()};
  for (const Model* model : models) {
    const std::vector<float> expected = cpu_logits(*model);
    for (const Streaming streaming : {Streaming::none, Streaming::prefill, Streaming::always}) {
      for (int64_t n_gpu_layers : {0, 5, 17}) {
        for (const CacheChoice& cache :
             {CacheChoice(CacheBesideLayers{}), CacheChoice(CacheOnHost{}), CacheChoice(CacheOnHost{true}), CacheChoice(CacheBesideLayers{true}),
              CacheChoice(PrefetchedCache{})}) {
          for (int64_t n_disk : {2, 7, 16}) {
            SCOPED_TRACE(std::string(streaming_name(streaming)) + " -ngl " + std::to_string(n_gpu_layers) +
                         ", cache " + std::to_string(cache.index()) + ", on disk " + std::to_string(n_disk));
            const int64_t n_cpu_moe = model == moe_.get() && n_disk == 7 ? 9 : 0;
            test::MeteredHost host;
            const auto s =
                session(*model, {&host, &sim}, {n_gpu_layers, cache, n_cpu_moe, streaming, n_disk});
            ASSERT_EQ(logits(*s), expected);
            expect_as_planned(*s, host);
            EXPECT_EQ(sim.used_bytes(), s->placement().bytes.devices[1].total());
            const uint64_t before = sim.fetched_bytes();
            decode_one(*s);
            if (!std::holds_alternative<PrefetchedCache>(cache)) {
              // Reads ahead for the next step may or may not have started.
              EXPECT_NEAR(static_cast<double>(sim.fetched_bytes() - before),
                          static_cast<double>(s->placement().bytes.per_token.weights),
                          static_cast<double>(s->placement().bytes.devices[1].staging));
            }
          }
        }
      }
    }
  }
}

TEST_F(Disk, SingleTensorsElsewhereAndTwoDevices) {
  test::SimDevice sim0({.name = "SIM0", .copy_bytes_per_s = 1e9}), sim1({.name = "SIM1"});
  OffloadOptions flags;
  // A CPU layer between streamed layers is read into two slots.
  flags.tensor_overrides = {{"blk\\.(3|8|9)\\.(attn_k|ffn_up)", "CPU"},
                            {"blk\\.(4|8)\\.attn_output", "SIM1"}};
  flags.tensor_split = {1, 1};
  for (const Model* model : {dense_.get(), moe_.get()}) {
    const std::vector<float> expected = cpu_logits(*model);
    for (const Streaming streaming : {Streaming::prefill, Streaming::always}) {
      for (int64_t n_disk : {5, 16}) {
        SCOPED_TRACE(n_disk);
        test::MeteredHost host;
        const auto s = session(*model, {&host, &sim0, &sim1},
                               {.n_gpu_layers = 3, .streaming = streaming, .n_disk_layers = n_disk}, flags);
        EXPECT_EQ(logits(*s), expected);
        expect_as_planned(*s, host);
      }
    }
  }
}

TEST_F(Disk, WithASplitCache) {
  const auto logits_with = [&](int64_t n_disk, Streaming streaming) {
    test::MeteredHost host;
    test::SimDevice sim({.copy_bytes_per_s = 1e9});
    EngineOptions o = options();
    o.context.n_ctx = 256;
    const std::vector<Device*> devices{&host, &sim};
    o.placement = place(dense_->architecture(), dense_->weights(), devices, {},
                        {.n_gpu_layers = 6, .streaming = streaming, .n_disk_layers = n_disk});
    const ContextOptions shape{.n_ctx = o.context.n_ctx, .n_ubatch = o.context.n_ubatch};
    split_caches(o.placement, 8, session_graphs(dense_->architecture(), shape).kv, o.context.n_ubatch);
    Session s(*dense_, devices, o);
    s.append(prompt(150));  // more than the hot cache holds
    EXPECT_TRUE(s.placement().placement.splits_caches());
    std::vector<float> all = logits(s);
    expect_as_planned(s, host);
    EXPECT_EQ(sim.used_bytes(), s.placement().bytes.devices[1].total());
    return all;
  };
  for (const Streaming streaming : {Streaming::none, Streaming::always}) {
    const std::vector<float> in_memory = logits_with(0, streaming);
    for (int64_t n_disk : {3, 9}) EXPECT_EQ(logits_with(n_disk, streaming), in_memory) << n_disk;
  }
}

TEST_F(Disk, ModelsInSeveralFiles) {
  const std::string path = directory_.path("split.gguf");
  const GgufFile whole(directory_.path("dense.gguf"));
  SplitWriter writer(path);
  writer.metadata() = whole.metadata();
  std::vector<uint64_t> sizes;
  for (const TensorInfo& t : whole.tensors()) {
    writer.add_tensor(t.name, t.dtype, std::span(t.dims, static_cast<size_t>(t.n_dims)));
  }
  writer.split({.max_tensors = 13});  // in the middle of layers
  for (const TensorInfo& t : whole.tensors()) writer.write_tensor(t.name, {t.data, t.n_bytes});
  writer.finish();
  const auto model = Model::load(writer.paths().front());
  ASSERT_GT(model->file().n_parts(), 5u);
  test::MeteredHost host;
  const auto s = session(*model, {&host}, {.n_disk_layers = 12});
  EXPECT_EQ(logits(*s), cpu_logits(*dense_));
  expect_as_planned(*s, host);
}

// ---- More than memory ----

// The whole pages of weights read from disk; their mapping must not be touched.
class Forbidden {
 public:
  Forbidden(const Model& model, const Placement& placement) {
    for (const Weight& w : model.weights()) {
      if (!placement.on_disk(w)) continue;
      const auto begin = (reinterpret_cast<uintptr_t>(w.data) + 4095) / 4096 * 4096;
      const auto end = reinterpret_cast<uintptr_t>(w.data + w.n_bytes()) / 4096 * 4096;
      if (begin >= end) continue;
      pages_.emplace_back(reinterpret_cast<void*>(begin), end - begin);
      n_bytes_ += end - begin;
      EXPECT_EQ(mprotect(pages_.back().first, pages_.back().second, PROT_NONE), 0);
    }
  }
  ~Forbidden() {
    for (const auto& [begin, n] : pages_) mprotect(begin, n, PROT_READ);
  }
  Forbidden(const Forbidden&) = delete;
  Forbidden& operator=(const Forbidden&) = delete;
  size_t n_bytes() const { return n_bytes_; }

 private:
  std::vector<std::pair<void*, size_t>> pages_;
  size_t n_bytes_ = 0;
};

class LargerThanMemory : public Disk {
 protected:
  void SetUp() override {
    test::TinyShape shape;
    shape.n_layer = kLayers;
    shape.n_embd = 128;
    shape.n_ff = 512;
    large_ = load("large.gguf", shape);
    expected_ = SplitRig::cpu_logits(*large_, options());
  }
  OffloadOptions quarter() const {
    OffloadOptions flags;
    flags.budgets.max_ram = large_->n_weight_bytes() / 4;
    return flags;
  }
  std::string error_of(const std::vector<Device*>& devices, const OffloadOptions& flags, ErrorCode code) {
    try {
      Session s(*large_, devices, options(flags));
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), code);
      return e.what();
    }
    return "no error";
  }
  std::unique_ptr<Model> large_;
  std::vector<float> expected_;
};

TEST_F(LargerThanMemory, FourTimesRunsOnTheCpu) {
  test::MeteredHost host;
  Session s(*large_, {&host}, options(quarter()));
  const Forbidden pages(*large_, s.placement().placement);
  EXPECT_GT(pages.n_bytes(), large_->n_weight_bytes() * 3 / 4);
  EXPECT_EQ(logits(s), expected_);
  expect_as_planned(s, host);
  const Footprint& bytes = s.placement().bytes;
  EXPECT_LE(bytes.mapped_weights + bytes.devices[0].total(), *quarter().budgets.max_ram);
  EXPECT_LE(host.peak_bytes() + bytes.mapped_weights, *quarter().budgets.max_ram);
  size_t held = 0;
  for (const Weight& w : large_->weights()) held += w.n_bytes();
  EXPECT_EQ(bytes.mapped_weights + bytes.disk_weights, held);
}

TEST_F(LargerThanMemory, FourTimesRunsWithAGpu) {
  for (const bool streams : {false, true}) {
    test::MeteredHost host;
    test::SimDevice sim({.memory_bytes = 6 << 20});
    OffloadOptions flags = quarter();
    flags.budgets.vram_overhead = 0;
    flags.stream = streams ? Toggle::on : Toggle::off;
    Session s(*large_, {&host, &sim}, options(flags));
    const Forbidden pages(*large_, s.placement().placement);
    EXPECT_GT(pages.n_bytes(), large_->n_weight_bytes() / 4);
    EXPECT_EQ(logits(s), expected_);
    expect_as_planned(s, host);
    EXPECT_EQ(sim.peak_bytes(), s.placement().bytes.devices[1].total());
    EXPECT_LE(host.peak_bytes() + s.placement().bytes.mapped_weights, *flags.budgets.max_ram);
  }
}

TEST_F(LargerThanMemory, AsFewLayersAsNecessary) {
  test::MeteredHost host;
  OffloadOptions flags;
  int64_t before = kLayers + 1;
  for (double share : {0.3, 0.5, 0.8, 0.95, 2.0}) {
    flags.budgets.max_ram = static_cast<size_t>(share * static_cast<double>(large_->n_weight_bytes()));
    Session s(*large_, {&host}, options(flags));
    const int64_t n = s.placement().choice.n_disk_layers;
    EXPECT_LT(n, before) << share;
    before = n;
  }
  EXPECT_EQ(before, 0);
}

TEST_F(LargerThanMemory, WithoutABudgetTheMachineDecides) {
  test::MeteredHost small({.memory_bytes = large_->n_weight_bytes() / 2});
  Session s(*large_, {&small}, options());
  EXPECT_GT(s.placement().choice.n_disk_layers, kLayers / 2);
  EXPECT_EQ(logits(s), expected_);
  OffloadOptions off;
  off.disk = Toggle::off;
  Session mapped(*large_, {&small}, options(off));
  EXPECT_EQ(mapped.placement().bytes.disk_weights, 0u);
}

TEST_F(LargerThanMemory, TooLittleReportsTheMinimum) {
  test::MeteredHost host;
  OffloadOptions flags;
  flags.budgets.max_ram = 1 << 20;
  const std::string message = error_of({&host}, flags, ErrorCode::out_of_memory);
  ASSERT_THAT(message, HasSubstr("max_ram: "));
  flags.budgets.max_ram = std::stoull(message.substr(9));
  EXPECT_LT(*flags.budgets.max_ram, large_->n_weight_bytes() / 4);
  EXPECT_EQ(error_of({&host}, flags, ErrorCode::out_of_memory), "no error");
  --*flags.budgets.max_ram;
  EXPECT_THAT(error_of({&host}, flags, ErrorCode::out_of_memory), HasSubstr("max_ram: "));
  flags.disk = Toggle::off;
  const std::string off = error_of({&host}, flags, ErrorCode::out_of_memory);
  EXPECT_GT(std::stoull(off.substr(9)), large_->n_weight_bytes());
}

TEST_F(LargerThanMemory, ContradictionsNameBothSettings) {
  EngineOptions o;
  o.offload.disk = Toggle::on;
  const auto settings = [&] {
    try {
      check_options(o);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
      return settings_in(e.message());
    }
    return std::vector<SettingValue>{};
  };
  EXPECT_TRUE(settings().empty());
  o.model.open.mlock = true;
  EXPECT_THAT(settings(), ElementsAre(SettingValue{Setting::disk}, SettingValue{Setting::mlock}));
  o.model.open.mmap = false;
  EXPECT_THAT(settings(), ElementsAre(SettingValue{Setting::disk}, SettingValue{Setting::mmap, "off"}));
}

TEST_F(LargerThanMemory, WhatIsLoadedAnywayIsNotReadAgain) {
  const auto loaded = Model::load({.path = directory_.path("large.gguf"), .open = {.mmap = false}});
  test::MeteredHost small({.memory_bytes = large_->n_weight_bytes() / 2});
  Session s(*loaded, {&small}, options());
  EXPECT_EQ(s.placement().choice.n_disk_layers, 0);
  EXPECT_EQ(s.placement().bytes.disk_weights, 0u);
  OffloadOptions flags;
  flags.budgets.max_ram = 4 << 20;
  EXPECT_THROW(Session(*loaded, {&small}, options(flags)), Error);
}

}  // namespace
}  // namespace tandem
