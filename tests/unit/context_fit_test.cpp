// The context that memory holds: on hosts and GPUs of several sizes, with budgets, and in the words of the program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "base/error.h"
#include "base/setting.h"
#include "plan/context_fit.h"
#include "plan/imagined_device.h"
#include "support/gguf_bytes.h"
#include "support/metered_host.h"
#include "support/phi_like.h"
#include "support/planned_machine.h"
#include "support/process.h"
#include "support/tiny_model.h"

namespace tandem {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr size_t kGiB = size_t{1} << 30;
constexpr int64_t kTrained = 131072, kLeast = 4096, kFloor = 512, kMultiple = 256;

// 1.9 GiB of weights, 384 KiB of cache per token.
class AutomaticContext : public testing::Test {
 protected:
  void SetUp() override {
    for (Weight& w : phi_.weights) w.in_file = true;
    host(1024);
  }
  void host(double gib) {
    host_ = std::make_unique<test::MeteredHost>(
        test::MeteredHostOptions{.memory_bytes = static_cast<size_t>(gib * kGiB), .run_s = {}});
    devices_ = {host_.get()};
    rates_.clear();
  }
  void gpu(double gib) {
    gpu_ = std::make_unique<ImaginedDevice>("GPU", static_cast<size_t>(gib * kGiB), test::bytes_as_in_file);
    devices_ = {host_.get(), gpu_.get()};
    rates_ = {test::kPlannerHost, test::kPlannerGpu};
  }
  PlanRequest request() const { return {phi_, phi_.weights, devices_, flags_, shape_, rates_}; }
  SessionPlan plan() const { return plan_session(request()).front(); }
  SessionPlan plan_of(int64_t n_ctx) const {
    PlanRequest r = request();
    r.shape.n_ctx = n_ctx;
    return plan_session(r).front();
  }
  std::string error_of(int64_t n_ctx) const {
    try {
      plan_of(n_ctx);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::out_of_memory);
      return e.what();
    }
    return "no error";
  }
  size_t host_limit() const { return host_->memory_info().free_bytes / 16 * 15; }

  test::PhiLike phi_;
  std::unique_ptr<test::MeteredHost> host_;
  std::unique_ptr<ImaginedDevice> gpu_;
  DeviceModels devices_;
  std::vector<DeviceRates> rates_;
  OffloadOptions flags_;
  ContextOptions shape_;
};

TEST_F(AutomaticContext, IsTheTrainedOneIfMemoryHoldsIt) {
  host(64);
  EXPECT_EQ(plan().shape.n_ctx, kTrained);
  EXPECT_EQ(plan().context_limit, "");
  gpu(80);
  EXPECT_EQ(plan().shape.n_ctx, kTrained);
  EXPECT_EQ(plan().fit.choice.n_gpu_layers, test::PhiLike::kLayers + 1);
}

// The largest with all weights in host memory: one more block of it would push a layer to disk.
TEST_F(AutomaticContext, ShrinksBeforeWeightsGoToDisk) {
  int64_t before = 0;
  for (const double gib : {6.0, 8.0, 16.0, 32.0}) {
    SCOPED_TRACE(gib);
    host(gib);
    const SessionPlan p = plan();
    EXPECT_GT(p.shape.n_ctx, std::max(before, kLeast));
    EXPECT_EQ(p.shape.n_ctx % kMultiple, 0);
    EXPECT_EQ(p.fit.choice.n_disk_layers, 0);
    EXPECT_LE(device_needs(p.fit, 0), host_limit());
    EXPECT_GT(plan_of(p.shape.n_ctx + kMultiple).fit.choice.n_disk_layers, 0);
    EXPECT_THAT(p.context_limit, AllOf(HasSubstr(format("{:.2f} GiB", gib)), HasSubstr("free memory")));
    before = p.shape.n_ctx;
  }
}

TEST_F(AutomaticContext, KeepsWithinMaxRam) {
  flags_.budgets.max_ram = 5 * kGiB;
  const SessionPlan p = plan();
  EXPECT_GT(p.shape.n_ctx, kLeast);
  EXPECT_LT(p.shape.n_ctx, kTrained);
  EXPECT_EQ(p.fit.choice.n_disk_layers, 0);
  EXPECT_LE(device_needs(p.fit, 0), 5 * kGiB);
  EXPECT_EQ(p.context_limit, "5.00 GiB of memory");
}

// Less than 4096 tokens where those would push weights to disk: as many as do not.
TEST_F(AutomaticContext, GoesBelowTheLeastBeforeWeightsGoToDisk) {
  const auto check = [&] {
    const SessionPlan p = plan();
    EXPECT_GT(plan_of(kLeast).fit.choice.n_disk_layers, 0);
    EXPECT_GE(p.shape.n_ctx, kFloor);
    EXPECT_LT(p.shape.n_ctx, kLeast);
    EXPECT_EQ(p.fit.choice.n_disk_layers, 0);
    EXPECT_GT(plan_of(p.shape.n_ctx + kMultiple).fit.choice.n_disk_layers, 0);
    EXPECT_NE(p.context_limit, "");
  };
  for (const size_t mib : {size_t{2560}, size_t{3072}, size_t{3584}}) {
    SCOPED_TRACE(mib);
    flags_.budgets.max_ram = mib << 20;
    check();
  }
  flags_ = {};
  host(3);
  check();
}

// Where not even the smallest context keeps them, weights move for 4096 tokens and for no more than that.
TEST_F(AutomaticContext, MovesWeightsOnlyForTheLeast) {
  flags_.budgets.max_ram = size_t{2200} << 20;
  EXPECT_GT(plan_of(kFloor).fit.choice.n_disk_layers, 0);
  const SessionPlan p = plan();
  const SessionPlan least = plan_of(kLeast);
  EXPECT_GE(p.shape.n_ctx, kLeast);
  EXPECT_EQ(p.fit.choice.n_disk_layers, least.fit.choice.n_disk_layers);
  EXPECT_LE(device_needs(p.fit, 0), *flags_.budgets.max_ram);
  EXPECT_EQ(p.context_limit, "");  // memory does not hold it
}

TEST_F(AutomaticContext, GoesBelowTheLeastIfNothingElseFits) {
  flags_.budgets.max_ram = kGiB;
  EXPECT_NE(error_of(kLeast), "no error");
  const SessionPlan p = plan();
  EXPECT_LT(p.shape.n_ctx, kLeast);
  EXPECT_GE(p.shape.n_ctx, kMultiple);
  EXPECT_LE(device_needs(p.fit, 0), kGiB);
  flags_.budgets.max_ram = 10 << 20;  // not even the smallest
  EXPECT_THROW(plan(), Error);
}

TEST_F(AutomaticContext, KeepsAllLayersOnTheGpu) {
  int64_t before = 0;
  for (const double gib : {6.0, 8.0, 24.0}) {
    SCOPED_TRACE(gib);
    gpu(gib);
    const SessionPlan p = plan();
    EXPECT_GT(p.shape.n_ctx, std::max(before, kLeast));
    EXPECT_TRUE(p.fit.choice.is_all_on_gpus(test::PhiLike::kLayers));
    const size_t n_bytes = p.fit.bytes.devices[1].total() + flags_.budgets.vram_overhead;
    EXPECT_LE(n_bytes, static_cast<size_t>(gib * kGiB));
    EXPECT_GT(n_bytes + kMultiple * 393216, static_cast<size_t>(gib * kGiB));
    EXPECT_EQ(p.context_limit, format("{:.2f} GiB on GPU", gib));
    before = p.shape.n_ctx;
  }
  gpu(24);
  flags_.budgets.max_vram = 8 * kGiB;
  EXPECT_EQ(plan().context_limit, "8.00 GiB on GPU");
  EXPECT_LE(plan().fit.bytes.devices[1].total() + flags_.budgets.vram_overhead, 8 * kGiB);
}

// A GPU that is too small for the weights: it has as many layers as with the least context.
TEST_F(AutomaticContext, TakesNoLayersOffTheGpu) {
  for (const double gib : {1.0, 2.0}) {
    SCOPED_TRACE(gib);
    gpu(gib);
    const SessionPlan p = plan(), least = plan_of(kLeast);
    EXPECT_GE(p.shape.n_ctx, kLeast);
    EXPECT_GE(p.fit.choice.n_gpu_layers, least.fit.choice.n_gpu_layers);
    EXPECT_LE(p.fit.choice.n_disk_layers, least.fit.choice.n_disk_layers);
    EXPECT_LE(p.fit.bytes.devices[1].total() + flags_.budgets.vram_overhead, static_cast<size_t>(gib * kGiB));
    EXPECT_EQ(p.context_limit, "");
  }
}

TEST_F(AutomaticContext, GoesBelowTheLeastBeforeWeightsGoOffTheGpu) {
  flags_.kv_on_host = Toggle::off;
  for (const double gib : {3.0, 3.5}) {
    SCOPED_TRACE(gib);
    gpu(gib);
    const SessionPlan p = plan();
    EXPECT_LE(plan_of(kLeast).fit.choice.n_gpu_layers, test::PhiLike::kLayers);
    EXPECT_GE(p.shape.n_ctx, kFloor);
    EXPECT_LT(p.shape.n_ctx, kLeast);
    EXPECT_EQ(p.fit.choice.n_gpu_layers, test::PhiLike::kLayers + 1);
    EXPECT_EQ(p.context_limit, format("{:.2f} GiB on GPU", gib));
  }
}

// A GPU that holds part of the weights, and a host that holds the others with a small context only.
TEST_F(AutomaticContext, GoesBelowTheLeastBeforeTheHostsPartGoesToDisk) {
  gpu(1);
  flags_.budgets.max_ram = size_t{2560} << 20;
  const bool moves = plan_of(kLeast).fit.choice.n_disk_layers > 0;
  const SessionPlan p = plan();
  EXPECT_EQ(p.fit.choice.n_disk_layers, 0);
  EXPECT_EQ(p.shape.n_ctx < kLeast, moves);
}

TEST_F(AutomaticContext, KeepsTheUsersLayers) {
  gpu(8);
  flags_.n_gpu_layers = test::PhiLike::kLayers + 1;
  flags_.kv_on_host = Toggle::off;
  const SessionPlan p = plan();
  EXPECT_GT(p.shape.n_ctx, kLeast);
  EXPECT_TRUE(p.fit.choice.is_all_on_gpus(test::PhiLike::kLayers));
  EXPECT_LE(p.fit.bytes.devices[1].total(), 8 * kGiB);
}

TEST_F(AutomaticContext, IsLongerWithAQuantizedCache) {
  host(8);
  const int64_t n_floats = plan().shape.n_ctx;
  shape_.k_dtype = shape_.v_dtype = DType::Q8_0;  // 34 bytes for 32 elements instead of 64
  EXPECT_NEAR(static_cast<double>(plan().shape.n_ctx), static_cast<double>(n_floats) * 64 / 34, 600);
}

TEST_F(AutomaticContext, OfSeveralSequencesHasItsOwnBounds) {
  shape_.n_sequences = 8;
  shape_.min_ctx = shape_.max_ctx = 16384;
  EXPECT_EQ(plan().shape.n_ctx, 16384);
  host(6);
  shape_.min_ctx = 8192;
  EXPECT_GE(plan().shape.n_ctx, 8192);
  EXPECT_LT(plan().shape.n_ctx, 16384);
  EXPECT_EQ(plan().fit.choice.n_disk_layers, 0);
  host(4);  // a block of 256 tokens each, rather than weights on disk
  EXPECT_GE(plan().shape.n_ctx, 8 * kMultiple);
  EXPECT_LT(plan().shape.n_ctx, 8192);
  EXPECT_EQ(plan().fit.choice.n_disk_layers, 0);
}

TEST_F(AutomaticContext, ZeroThatIsGivenMeansTheTrainedOne) {
  host(8);
  shape_.n_ctx_given = true;
  EXPECT_EQ(checked_shape(phi_, shape_).n_ctx, kTrained);
  EXPECT_EQ(error_of(0), error_of(kTrained));
}

// The context that an error names fits with all weights in memory, and a little more does not.
TEST_F(AutomaticContext, ErrorsNameTheLargestThatFits) {
  const auto check = [&](int64_t asked) {
    const std::string message = error_of(asked);
    std::smatch number;
    ASSERT_TRUE(std::regex_search(message, number, std::regex("n_ctx=([0-9]+)$|n_ctx=([0-9]+)[, ]")))
        << message;
    const int64_t n = std::stoll(number[1].matched ? number[1].str() : number[2].str());
    ASSERT_EQ(error_of(n), "no error") << message;
    PlanRequest r = request();
    r.shape.n_ctx = n;
    const std::vector<SessionPlan> plans = plan_session(r);  // the fastest may have some on disk
    EXPECT_TRUE(std::any_of(plans.begin(), plans.end(), [](const SessionPlan& p) {
      return p.fit.choice.n_disk_layers == 0;
    })) << message;
    EXPECT_TRUE(error_of(n + kMultiple) != "no error" || plan_of(n + kMultiple).fit.choice.n_disk_layers > 0)
        << message;
  };
  host(8);
  check(kTrained);
  flags_.budgets.max_ram = 3 * kGiB;
  check(kTrained);
  flags_ = {};
  host(16);
  gpu(8);
  check(kTrained);
}

TEST_F(AutomaticContext, ErrorsNameAContextWithWeightsOnDiskIfNoOtherFits) {
  flags_.budgets.max_ram = kGiB;
  EXPECT_THAT(error_of(kTrained), testing::ContainsRegex("the largest context that fits is n_ctx=[0-9]+$"));
}

TEST_F(AutomaticContext, ErrorsNameNoMoreThanTheTrainedContext) {
  host(64);
  EXPECT_THAT(error_of(2000000000), HasSubstr("n_ctx=131072, which the model was trained with, fits"));
  host(8);
  EXPECT_THAT(error_of(2000000000), HasSubstr("(the model was trained with 131072 tokens)"));
  gpu(24);  // 131072 tokens take 48 GiB
  flags_.n_gpu_layers = test::PhiLike::kLayers + 1;
  flags_.kv_on_host = Toggle::off;
  EXPECT_THAT(error_of(2000000000), Not(testing::ContainsRegex("n_ctx=[0-9]{7,9}[^0-9]")));
}

TEST_F(AutomaticContext, ACacheLargerThanAllMemoryIsRefusedAtOnce) {
  host(8);
  const std::string message = error_of(2000000000);
  EXPECT_THAT(message, AllOf(HasSubstr("n_ctx=2000000000: the KV cache alone would take 732421.88 GiB"),
                             HasSubstr("all memory is 8.00 GiB"),
                             HasSubstr("largest context that fits with all weights in memory is n_ctx=")));
}

// What the program says of a model that is trained with 128 tokens; a token of its cache takes 512 bytes.
class ContextCommand : public testing::Test {
 protected:
  void SetUp() override {
    model_ = directory_.path("tiny.gguf");
    test::tiny_llama().write(model_);
  }
  test::Outcome run(const std::string& arguments) {
    return test::shell("XDG_CACHE_HOME=" + directory_.path("cache"),
                       "run -m " + model_ + " -p a -n 1 -dev none " + arguments + " 2>&1 </dev/null");
  }
  test::TempDir directory_;
  std::string model_;
};

TEST_F(ContextCommand, SaysWhatMemoryHolds) {
  TANDEM_NEED_BINARY();
  const std::string longer = "--override-kv llama.context_length=int:2000000000 ";
  const test::Outcome limited = run(longer + "--max-ram 16MiB");
  EXPECT_EQ(limited.exit_code, 0) << limited.out;
  EXPECT_THAT(limited.out,
              testing::ContainsRegex("context: [0-9]+ tokens, what 16.0 MiB of memory holds \\(the "
                                     "model was trained with 2000000000; -c sets another\\)"));
  const test::Outcome whole = run("");
  EXPECT_EQ(whole.exit_code, 0) << whole.out;
  EXPECT_THAT(whole.out, Not(HasSubstr("context:")));
}

TEST_F(ContextCommand, WarnsBeyondTheTrainedContext) {
  TANDEM_NEED_BINARY();
  const test::Outcome longer = run("-c 4096");
  EXPECT_EQ(longer.exit_code, 0);
  EXPECT_THAT(longer.out, HasSubstr("warning: -c 4096: the model was trained with 128 tokens"));
  EXPECT_THAT(run("-c 128").out, Not(HasSubstr("trained")));
  EXPECT_THAT(run("-c 4096 --rope-scaling yarn --rope-scale 32").out, Not(HasSubstr("trained")));
  EXPECT_THAT(run("-c 4096 --rope-scaling yarn --rope-scale 16").out,
              HasSubstr("warning: -c 4096: the 128 tokens that the model was trained with, scaled by 16, reach 2048, and it is likely"));
  EXPECT_THAT(run("-c 4096 --rope-freq-base 1000000").out, Not(HasSubstr("trained")));
}

TEST_F(ContextCommand, SelfExtendMakesTheTrainedContextLonger) {
  TANDEM_NEED_BINARY();
  EXPECT_THAT(run("-c 280 -gan 4 -gaw 64").out, Not(HasSubstr("trained")));
  const test::Outcome longer = run("-c 352 -gan 4 -gaw 64");
  EXPECT_EQ(longer.exit_code, 0);
  EXPECT_THAT(longer.out,
              HasSubstr("warning: -c 352: with --grp-attn-n 4 and --grp-attn-w 64, the 128 tokens that "
                        "the model was trained with reach 320, and it is likely to fail beyond them"));
  const auto refused = [&](const std::string& arguments) {
    const test::Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    return outcome.out;
  };
  EXPECT_THAT(refused("-gan 0"), HasSubstr("--grp-attn-n"));
  EXPECT_THAT(refused("-gan 4 -gaw 0"), HasSubstr("--grp-attn-w"));
  EXPECT_THAT(refused("-gan 4 -gaw 62"),
              HasSubstr("--grp-attn-w 62: needed a multiple of --grp-attn-n, which is 4"));
  EXPECT_THAT(refused("-gan 4"), HasSubstr("--grp-attn-w 512: needed less than the 128 tokens"));
  EXPECT_THAT(refused("-gan 4 -gaw 64 --rope-scaling yarn"),
              HasSubstr("--grp-attn-n 4 and --rope-* contradict"));
  EXPECT_THAT(refused("-gan 4 -gaw 64 --yarn-ext-factor 1"),
              HasSubstr("--grp-attn-n 4 and --yarn-* contradict"));
  EXPECT_THAT(refused("-gan 4 -gaw 64 --sparse-kv 8,8"),
              HasSubstr("--grp-attn-n 4 and --sparse-kv contradict"));
}

TEST_F(ContextCommand, AnImpossibleCacheIsOneSentence) {
  TANDEM_NEED_BINARY();
  const test::Outcome refused = run("-c 2000000000");
  EXPECT_EQ(refused.exit_code, 4) << refused.out;
  EXPECT_THAT(refused.out, AllOf(HasSubstr("-c 2000000000: the KV cache alone would take"),
                                 HasSubstr("-c 128, which the model was trained with, fits"),
                                 Not(HasSubstr("micro-batch"))));
  EXPECT_EQ(std::count(refused.out.begin(), refused.out.end(), '\n'), 1) << refused.out;
}

}  // namespace
}  // namespace tandem
