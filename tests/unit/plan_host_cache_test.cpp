// A cache that the user keeps on the host: with prompts on the GPU, where it has room for the slots.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace tandem
