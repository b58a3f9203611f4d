// Placement by flags on simulated devices: every -ngl with and without -nkvo, experts on either side, one and
// two devices. The logits equal the CPU's bit for bit, and the bytes that cross the bus match --explain.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "support/split_rig.h"

namespace tandem {
namespace {

using testing::HasSubstr;

class Offload : public test::SplitRig {
 protected:
  void SetUp() override { load_both(4); }

  static EngineOptions options(const OffloadOptions& flags) {
    EngineOptions o;
    o.context.n_ubatch = 16;
    o.offload = flags;
    return o;
  }

  static uint64_t copied(const std::vector<Device*>& devices) {
    uint64_t sum = 0;
    for (size_t d = 1; d < devices.size(); ++d)
      sum += static_cast<test::SimDevice*>(devices[d])->copied_bytes();
    return sum;
  }

  // Copies for one decoded token, and the memory of every device, match the footprint.
  void expect_footprint(Session& session, const std::vector<Device*>& devices) {
    const BusBytes& bus = session.placement().bytes.per_token;
    const uint64_t before = copied(devices);
    decode_one(session);
    const auto n_blocks = static_cast<uint64_t>((session.n_past() + 31) / 32);
    EXPECT_EQ(copied(devices) - before,
              bus.activations + bus.logits + bus.inputs + bus.inputs_per_block * n_blocks);
    for (size_t d = 1; d < devices.size(); ++d) {
      EXPECT_EQ(static_cast<test::SimDevice*>(devices[d])->used_bytes(),
                session.placement().bytes.devices[d].total());
    }
  }

  void sweep(const Model& model, const std::vector<Device*>& devices, bool with_experts) {
    const std::vector<float> expected = cpu_logits(model);
    for (int64_t ngl = 0; ngl <= model.hparams().n_layer + 2; ++ngl) {
      for (bool kv_on_host : {false, true}) {
        for (int64_t n_cpu_moe : {0, 2, 99}) {
          if (n_cpu_moe > 0 && !with_experts) continue;
          SCOPED_TRACE("-ngl " + std::to_string(ngl) + (kv_on_host ? " -nkvo" : "") + " --n-cpu-moe " +
                       std::to_string(n_cpu_moe));
          OffloadOptions flags;
          flags.n_gpu_layers = ngl;
          flags.kv_on_host = on_or_off(kv_on_host);
          flags.n_cpu_moe = n_cpu_moe;
          Session session(model, devices, options(flags));
          EXPECT_EQ(logits(session), expected);
          expect_footprint(session, devices);
        }
      }
    }
  }
};

TEST_F(Offload, EveryNglOnOneDevice) {
  test::SimDevice sim({});
  sweep(*dense_, {host_.get(), &sim}, false);
  sweep(*moe_, {host_.get(), &sim}, true);
}

TEST_F(Offload, EveryNglOnTwoDevices) {
  test::SimDevice sim0({.name = "SIM0"}), sim1({.name = "SIM1"});
  sweep(*dense_, {host_.get(), &sim0, &sim1}, false);
  sweep(*moe_, {host_.get(), &sim0, &sim1}, true);
}

TEST_F(Offload, TensorSplitAndMainGpuChooseTheDevice) {
  test::SimDevice sim0({.name = "SIM0"}), sim1({.name = "SIM1"});
  const std::vector<Device*> devices{host_.get(), &sim0, &sim1};
  OffloadOptions flags;
  flags.n_gpu_layers = 5;
  flags.tensor_split = {3, 2};
  const Placement split = place(dense_->architecture(), dense_->weights(), devices, flags, 5);
  std::vector<DeviceId> where;
  for (const LayerPlacement& l : split.layers) where.push_back(holder(l.weights));
  EXPECT_EQ(where, (std::vector<DeviceId>{GpuId(0), GpuId(0), GpuId(0), GpuId(1)}));
  EXPECT_EQ(split.output, GpuId(1));
  flags.split_mode = SplitMode::none;
  flags.main_gpu = 1;
  for (const LayerPlacement& l : place(dense_->architecture(), dense_->weights(), devices, flags, 5).layers) {
    EXPECT_EQ(l.weights, WeightHome(Resident{GpuId(1)}));
  }
  flags.main_gpu = 2;
  EXPECT_THROW(place(dense_->architecture(), dense_->weights(), devices, flags, 5), Error);
  flags = {};
  flags.tensor_split = {1, 1, 1};
  EXPECT_THROW(place(dense_->architecture(), dense_->weights(), devices, flags, 5), Error);
}

TEST_F(Offload, KvLayersGpuLimitsTheCacheOnTheGpu) {
  test::SimDevice sim({});
  const std::vector<Device*> devices{host_.get(), &sim};
  OffloadOptions flags;
  flags.n_gpu_layers = 3;
  flags.n_kv_layers_gpu = 1;
  Session session(*dense_, devices, options(flags));
  EXPECT_EQ(logits(session), cpu_logits(*dense_));
  std::vector<DeviceId> kv;
  for (const LayerPlacement& l : session.placement().placement.layers) kv.push_back(holder(l.kv));
  const DeviceId host = DeviceId::host();
  EXPECT_EQ(kv, (std::vector<DeviceId>{host, host, host, GpuId(0)}));
}

TEST_F(Offload, OverridesMoveTheirTensors) {
  test::SimDevice sim({});
  const std::vector<Device*> devices{host_.get(), &sim};
  OffloadOptions flags;
  flags.n_gpu_layers = 99;
  flags.tensor_overrides = {{"ffn_.*_exps", "CPU"}, {"blk\\.0\\.attn_q", "CPU"}};
  Session session(*moe_, devices, options(flags));
  EXPECT_EQ(logits(session), cpu_logits(*moe_));
  expect_footprint(session, devices);
  flags.tensor_overrides = {{"no_such_tensor", "CPU"}};
  EXPECT_THROW(Session(*moe_, devices, options(flags)), Error);
  flags.tensor_overrides = {{"ffn", "CUDA7"}};
  EXPECT_THROW(Session(*moe_, devices, options(flags)), Error);
  flags.tensor_overrides = {{"ffn(", "CPU"}};
  EXPECT_THROW(Session(*moe_, devices, options(flags)), Error);
}

TEST_F(Offload, AutoUsesWhatFits) {
  OffloadOptions all;
  all.n_gpu_layers = 99;
  test::SimDevice big({.memory_bytes = size_t{1} << 30});
  const size_t everything = [&] {
    Session session(*dense_, {host_.get(), &big}, options(all));
    return session.placement().bytes.devices[1].total();
  }();
  {
    Session session(*dense_, {host_.get(), &big}, options({}));
    EXPECT_EQ(session.placement().choice.n_gpu_layers, 5);
  }
  test::SimDevice tight({.memory_bytes = everything + Budgets{}.vram_overhead - 1});
  Session session(*dense_, {host_.get(), &tight}, options({}));
  EXPECT_EQ(session.placement().choice.n_gpu_layers, 4);
  EXPECT_EQ(logits(session), cpu_logits(*dense_));
}

TEST_F(Offload, TooManyLayersReportsWhatWouldFit) {
  OffloadOptions all;
  all.n_gpu_layers = 99;
  test::SimDevice small({.memory_bytes = 200000});
  try {
    Session session(*dense_, {host_.get(), &small}, options(all));
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::out_of_memory);
    EXPECT_THAT(e.what(), HasSubstr("200000 are free"));
    EXPECT_THAT(e.what(), HasSubstr("n_gpu_layers="));
  }
  EXPECT_EQ(small.n_allocs(), 0);  // no attempt was made
}

TEST_F(Offload, ExplainNamesEveryPlace) {
  test::SimDevice sim({});
  OffloadOptions flags;
  flags.n_gpu_layers = 2;
  flags.n_cpu_moe = 3;
  std::string table;
  Session session(*moe_, {host_.get(), &sim}, options(flags), [&](const std::string& text) { table = text; });
  EXPECT_THAT(table, HasSubstr("SIM0"));
  EXPECT_THAT(table, HasSubstr("output"));
  EXPECT_THAT(table, HasSubstr("bus, per decoded token: " +
                               std::to_string(session.placement().bytes.per_token.activations) + " bytes"));
  EXPECT_THAT(table, HasSubstr("every op runs where it was placed"));
}

}  // namespace
}  // namespace tandem
