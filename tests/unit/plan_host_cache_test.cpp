// A cache that the user keeps on the host: with prompts on the GPU, where it has room for the slots.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cpu/cpu_device.h"
#include "plan/imagined_device.h"
#include "plan/session_plan.h"
#include "support/phi_like.h"
#include "support/planned_machine.h"

namespace tandem {
namespace {

class HostCache : public testing::Test {
 protected:
  PlanRequest request() { return {phi_, phi_.weights, devices_, flags_, shape_, rates_}; }

  const std::unique_ptr<Device> host_ = cpu::make_cpu_device({1, 1});
  ImaginedDevice gpu_{"GPU", size_t{1} << 30, [](const Weight& w) { return w.n_bytes(); }};
  const DeviceModels devices_{host_.get(), &gpu_};
  const std::vector<DeviceRates> rates_{test::kPlannerHost, test::kPlannerGpu};
  test::PhiLike phi_;
  OffloadOptions flags_;
  ContextOptions shape_{512};
};

TEST_F(HostCache, GoesToTheGpuForPromptsWhereItHasRoom) {
  flags_.n_gpu_layers = 3;
  flags_.kv_on_host = Toggle::on;
  shape_.n_ubatch_given = true;
  const Fit best = plan_session(request()).front().fit;
  EXPECT_EQ(best.choice.cache, CacheChoice(CacheOnHost{true}));
  EXPECT_EQ(best.bytes.per_token.kv_in_per_block, 0u);  // of decoding
  EXPECT_THAT(summary(devices_, best), testing::HasSubstr("; the KV cache on the CPU, brought there for prompts; "));

  OffloadChoice alone = best.choice;
  alone.cache = CacheOnHost{};
  const Fit without = fit_shape(request(), shape_, alone);
  EXPECT_GT(device_needs(best, 1), device_needs(without, 1));
  flags_.budgets.max_vram = device_needs(without, 1) + flags_.budgets.vram_overhead;
  EXPECT_EQ(plan_session(request()).front().fit.choice.cache, CacheChoice(CacheOnHost{}));
}

// Layers on the host whose weights are brought for prompts: so are their caches, and the GPU attends.
TEST_F(HostCache, GoesToTheGpuWithTheWeightsThatPromptsNeed) {
  flags_.n_gpu_layers = 1;
  shape_ = ContextOptions{4096};
  shape_.n_ubatch = 2048;
  shape_.n_ubatch_given = true;
  const std::vector<SessionPlan> plans = plan_session(request());
  const auto with_cache = [&](const CacheChoice& cache) {
    return std::ranges::find_if(plans, [&](const SessionPlan& plan) {
      return plan.fit.choice.streaming == Streaming::prefill && plan.fit.choice.cache == cache;
    });
  };
  const auto with = with_cache(CacheBesideLayers{true}), without = with_cache(CacheBesideLayers{});
  ASSERT_NE(with, plans.end());
  ASSERT_NE(without, plans.end());
  EXPECT_LT(with, without);  // the better one comes first
  EXPECT_GT(with->fit.speed.prefill_tokens_per_s, without->fit.speed.prefill_tokens_per_s);
  EXPECT_EQ(with->fit.speed.decode_tokens_per_s, without->fit.speed.decode_tokens_per_s);
  EXPECT_GT(device_needs(with->fit, 1), device_needs(without->fit, 1));
  EXPECT_THAT(summary(devices_, with->fit), testing::HasSubstr("; the CPU's part of the KV cache brought there for prompts"));
}

}  // namespace
}  // namespace tandem
