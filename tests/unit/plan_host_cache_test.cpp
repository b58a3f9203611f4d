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

TEST(HostCache, GoesToTheGpuForPromptsWhereItHasRoom) {
  const std::unique_ptr<Device> host = cpu::make_cpu_device({1, 1});
  ImaginedDevice gpu("GPU", size_t{1} << 30, [](const Weight& w) { return w.n_bytes(); });
  const DeviceModels devices{host.get(), &gpu};
  const std::vector<DeviceRates> rates{test::kPlannerHost, test::kPlannerGpu};
  test::PhiLike phi;
  OffloadOptions flags;
  flags.n_gpu_layers = 3;
  flags.kv_on_host = Toggle::on;
  ContextOptions shape{512};
  shape.n_ubatch_given = true;
  const auto request = [&] {
    return PlanRequest{phi, phi.weights, devices, flags, shape, rates};
  };
  const Fit best = plan_session(request()).front().fit;
  EXPECT_EQ(best.choice.cache, CacheChoice(CacheOnHost{true}));
  EXPECT_EQ(best.bytes.per_token.kv_in_per_block, 0u);  // of decoding
  EXPECT_THAT(summary(devices, best), testing::HasSubstr("; the KV cache on the CPU, brought there for prompts; "));

  OffloadChoice alone = best.choice;
  alone.cache = CacheOnHost{};
  const Fit without = fit_shape(request(), shape, alone);
  EXPECT_GT(device_needs(best, 1), device_needs(without, 1));
  flags.budgets.max_vram = device_needs(without, 1) + flags.budgets.vram_overhead;
  EXPECT_EQ(plan_session(request()).front().fit.choice.cache, CacheChoice(CacheOnHost{}));
}

// Layers on the host whose weights are brought for prompts: so are their caches, and the GPU attends.
TEST(HostCache, GoesToTheGpuWithTheWeightsThatPromptsNeed) {
  const std::unique_ptr<Device> host = cpu::make_cpu_device({1, 1});
  ImaginedDevice gpu("GPU", size_t{1} << 30, [](const Weight& w) { return w.n_bytes(); });
  const DeviceModels devices{host.get(), &gpu};
  const std::vector<DeviceRates> rates{test::kPlannerHost, test::kPlannerGpu};
  test::PhiLike phi;
  OffloadOptions flags;
  flags.n_gpu_layers = 1;
  ContextOptions shape{4096};
  shape.n_ubatch = 2048;
  shape.n_ubatch_given = true;
  const auto request = [&] {
    return PlanRequest{phi, phi.weights, devices, flags, shape, rates};
  };
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
  EXPECT_THAT(summary(devices, with->fit), testing::HasSubstr("; the CPU's part of the KV cache brought there for prompts"));
}

}  // namespace
}  // namespace tandem
