// Trained models against the float64 logits of an independent program, and its text. Every ISA, 1 to 4
// threads, several micro-batch sizes, and split over simulated devices.
#include <gtest/gtest.h>

#include <cmath>

#include "cpu/cpu_device.h"
#include "engine/session.h"
#include "support/gguf_bytes.h"
#include "support/shared_data.h"
#include "support/sim_device.h"
#include "support/trained_model.h"

namespace tandem {
namespace {

// Of single logits. Those of the demo model are up to 25, and its sums are longer.
constexpr float kDemoTolerance = 1e-3f, kStoriesTolerance = 2e-4f;

EngineOptions f32_session(int64_t n_ubatch) {
  EngineOptions options;
  options.context.n_ubatch = n_ubatch;
  options.context.n_ctx = 128;
  options.context.k_dtype = options.context.v_dtype = DType::F32;
  options.context.all_logits = true;
  return options;
}

int32_t argmax(std::span<const float> row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

enum class Which { demo, stories };

class TrainedModel : public testing::TestWithParam<Which> {
 protected:
  void SetUp() override {
    if (GetParam() == Which::demo) {
      const std::string path = directory_.path("demo-F32.gguf");
      test::write_demo_f32(path);
      model_ = Model::load(path);
      golden_ = test::demo_golden();
      tolerance_ = kDemoTolerance;
    } else {
      TANDEM_NEED_SHARED(test::stories_model());
      model_ = Model::load(test::stories_model().string());
      golden_ = test::stories_golden();
      tolerance_ = kStoriesTolerance;
    }
  }

  // All logits of the golden sequence except its last token, row by row.
  std::vector<float> all_logits(const std::vector<Device*>& devices, const EngineOptions& options) {
    Session session(*model_, devices, options);
    std::vector<float> all;
    const auto ids = std::span(golden_.ids).first(golden_.ids.size() - 1);
    session.evaluate(ids, [&](int64_t, int64_t, std::span<const float> logits) {
      all.insert(all.end(), logits.begin(), logits.end());
    });
    return all;
  }

  void expect_golden(const std::vector<float>& all) {
    const auto n_vocab = static_cast<size_t>(model_->hparams().n_vocab);
    ASSERT_EQ(all.size(), (golden_.ids.size() - 1) * n_vocab);
    for (const auto& [position, expected] : golden_.logits) {
      ASSERT_EQ(expected.size(), n_vocab);
      float worst = 0;
      for (size_t i = 0; i < n_vocab; ++i) {
        worst = std::max(worst, std::fabs(all[static_cast<size_t>(position) * n_vocab + i] - expected[i]));
      }
      EXPECT_LT(worst, tolerance_) << "position " << position;
    }
    for (size_t p = golden_.n_prompt - 1; p + 1 < golden_.ids.size(); ++p) {
      EXPECT_EQ(argmax(std::span(all).subspan(p * n_vocab, n_vocab)), golden_.ids[p + 1]) << "position " << p;
    }
  }

  void expect_greedy(const std::vector<Device*>& devices, const EngineOptions& options) {
    Session session(*model_, devices, options);
    std::span<const float> logits = session.append(std::span(golden_.ids).first(golden_.n_prompt));
    for (size_t p = golden_.n_prompt; p < golden_.ids.size(); ++p) {
      const int32_t next = argmax(logits);
      ASSERT_EQ(next, golden_.ids[p]) << "position " << p;
      logits = session.append(std::span(&next, 1));
    }
  }

  test::TempDir directory_;
  std::unique_ptr<Model> model_;
  test::Golden golden_;
  float tolerance_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Demo, TrainedModel, testing::Values(Which::demo), [](const auto&) { return "F32"; });
INSTANTIATE_TEST_SUITE_P(Extra, TrainedModel, testing::Values(Which::stories),
                         [](const auto&) { return "Stories"; });

TEST_P(TrainedModel, EveryIsaAndMicroBatchGivesTheGoldenLogits) {
  for (cpu::Isa isa : cpu::supported_isas()) {
    for (int64_t n_ubatch : {512, 32, 3, 1}) {
      SCOPED_TRACE(std::string(cpu::isa_name(isa)) + " -ub " + std::to_string(n_ubatch));
      const auto device = cpu::make_cpu_device({2, 2, isa});
      expect_golden(all_logits({device.get()}, f32_session(n_ubatch)));
    }
  }
}

TEST_P(TrainedModel, EveryIsaWritesTheGoldenText) {
  for (cpu::Isa isa : cpu::supported_isas()) {
    SCOPED_TRACE(cpu::isa_name(isa));
    const auto device = cpu::make_cpu_device({2, 2, isa});
    expect_greedy({device.get()}, f32_session(512));
    EngineOptions half = f32_session(512);
    half.context.k_dtype = half.context.v_dtype = DType::F16;
    expect_greedy({device.get()}, half);
  }
}

TEST_P(TrainedModel, LogitsDoNotDependOnTheNumberOfThreads) {
  for (cpu::Isa isa : cpu::supported_isas()) {
    std::vector<float> first;
    for (int n_threads = 1; n_threads <= 4; ++n_threads) {
      const auto device = cpu::make_cpu_device({n_threads, n_threads, isa});
      const std::vector<float> all = all_logits({device.get()}, f32_session(32));
      if (n_threads == 1) first = all;
      EXPECT_EQ(all, first) << cpu::isa_name(isa) << " with " << n_threads << " threads";
    }
  }
}

// Every number of last layers on one simulated device or on two, with the cache beside the layer or on the
// host.
TEST_P(TrainedModel, ASplitOverSimulatedDevicesChangesNoBit) {
  const auto n_layer = static_cast<int>(model_->hparams().n_layer);
  const auto cpu_device = cpu::make_cpu_device({1, 1, cpu::best_isa()});
  test::SimDevice sim0({.name = "SIM0"}), sim1({.name = "SIM1"});
  const std::vector<Device*> devices{cpu_device.get(), &sim0, &sim1};
  const std::vector<float> expected = all_logits({cpu_device.get()}, f32_session(32));
  for (int on_device = 1; on_device <= n_layer + 1; ++on_device) {
    for (bool cache_at_home : {false, true}) {
      SCOPED_TRACE(std::to_string(on_device) + (cache_at_home ? " layers, cache at home" : " layers"));
      EngineOptions options = f32_session(32);
      options.placement = Placement::host_only(static_cast<size_t>(n_layer));
      const int first = std::max(0, n_layer + 1 - on_device);
      for (int i = first; i < n_layer; ++i) {
        // The first half on one, the rest on the other.
        const GpuId gpu((i - first) * 2 < n_layer - first ? 0 : 1);
        options.placement.layers[static_cast<size_t>(i)] = {
            Resident{gpu}, Resident{gpu}, ResidentKv{cache_at_home ? DeviceId::host() : gpu}};
      }
      options.placement.output = GpuId(1);
      const uint64_t copied = sim0.copied_bytes() + sim1.copied_bytes();
      EXPECT_EQ(all_logits(devices, options), expected);
      EXPECT_GT(sim0.copied_bytes() + sim1.copied_bytes(), copied);
      EXPECT_EQ(sim0.used_bytes() + sim1.used_bytes(), 0u);
    }
  }
}

TEST_P(TrainedModel, TruncatingAndContinuingLeavesNoTrace) {
  const auto device = cpu::make_cpu_device();
  Session session(*model_, {device.get()}, f32_session(32));
  const auto ids = std::span<const int32_t>(golden_.ids);
  const auto logits = session.append(ids.first(40));
  const std::vector<float> first(logits.begin(), logits.end());
  session.append(ids.subspan(40, 20));
  session.truncate(39);
  const auto again = session.append(ids.subspan(39, 1));
  for (size_t i = 0; i < first.size(); ++i) EXPECT_NEAR(again[i], first[i], 1e-4f);
}

}  // namespace
}  // namespace tandem
