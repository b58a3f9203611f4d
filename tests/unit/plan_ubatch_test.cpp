// Micro-batches that the planner chooses: wide ones where prompts are streamed or the host computes experts.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cpu/cpu_device.h"
#include "engine/model.h"
#include "plan/imagined_device.h"
#include "plan/session_plan.h"
#include "support/phi_like.h"
#include "support/planned_machine.h"
#include "tools/synth/shape_model.h"

namespace tandem {
namespace {

class PlannedUbatch : public testing::Test {
 protected:
  void SetUp() override { host_ = cpu::make_cpu_device({1, 1}); }

  std::unique_ptr<DeviceModel> host_;
  DeviceModels devices_;
  std::vector<DeviceRates> rates_;
  OffloadOptions flags_;
};

// Without a GPU. Where memory is scarce, weights that stay in it are worth more.
TEST_F(PlannedUbatch, ExpertsOfAMixtureGetEnoughRows) {
  const auto load = [](const char* name) {
    tools::Shape shape = *tools::find_shape(name);
    shape.n_layer = 4;
    return tools::load_shape(shape, {.type = tools::FileType::Q4_K_M}, {});
  };
  EXPECT_EQ(automatic_ubatch(load("llama-3.2-1b")->architecture(), 1), 512);
  EXPECT_EQ(automatic_ubatch(load("mixtral-8x7b")->architecture(), 1), 512);  // 2 of 8 experts
  const std::unique_ptr<Model> model = load("qwen3-30b-a3b");                 // 8 of 128
  EXPECT_EQ(automatic_ubatch(model->architecture(), 2), 512);
  EXPECT_EQ(automatic_ubatch(model->architecture(), 1), 2048);
  EXPECT_EQ(automatic_ubatch(load("deepseek-v3")->architecture(), 1), 4096);   // 8 of 256
  EXPECT_EQ(automatic_ubatch(load("gpt-oss-120b")->architecture(), 1), 4096);  // 4 of 128

  devices_ = {host_.get()};
  ContextOptions context{4096};
  context.n_ubatch = 2048;
  const auto plan_with = [&](std::optional<size_t> max_ram) {
    flags_.budgets.max_ram = max_ram;
    return plan_session({model->architecture(), model->weights(), devices_, flags_, context, {}}).front();
  };
  const SessionPlan all = plan_with(size_t{1} << 40);
  EXPECT_EQ(all.shape.n_ubatch, 2048);
  const SessionPlan less = plan_with(device_needs(all.fit, 0) - 1);
  EXPECT_EQ(less.shape.n_ubatch, 1024);
  EXPECT_FALSE(less.fit.choice.reads_disk());
  context.n_ubatch = 512;
  const size_t least = device_needs(plan_with(size_t{1} << 40).fit, 0);
  context.n_ubatch = 2048;
  const SessionPlan disk = plan_with(least - 1);
  EXPECT_EQ(disk.shape.n_ubatch, 2048);
  EXPECT_TRUE(disk.fit.choice.reads_disk());
  context.n_ubatch_given = true;
  EXPECT_TRUE(plan_with(device_needs(all.fit, 0) - 1).fit.choice.reads_disk());
}

// Beside a GPU too, where the bus is so slow that the host computes the experts of prompts.
TEST_F(PlannedUbatch, ExpertsOnTheHostGetEnoughRowsBesideAGpu) {
  tools::Shape shape = *tools::find_shape("qwen3-30b-a3b");
  shape.n_layer = 4;
  const std::unique_ptr<Model> model = tools::load_shape(shape, {.type = tools::FileType::Q4_K_M}, {});
  const ImaginedDevice gpu("GPU", size_t{4} << 30, test::bytes_as_in_file);
  devices_ = {host_.get(), &gpu};
  rates_ = {test::kPlannerHost, {.read_bytes_per_s = 1e12, .ops_per_s = 1e14, .bus_bytes_per_s = 1e8}};
  flags_.n_gpu_layers = flags_.n_cpu_moe = shape.n_layer + 1;
  const auto n_ubatch = [&](int64_t n_ctx, bool given = false) {
    ContextOptions context{n_ctx, 512};
    context.n_ubatch_given = given;
    const PlanRequest r{model->architecture(), model->weights(), devices_, flags_, context, rates_};
    return plan_session(r).front().shape.n_ubatch;
  };
  EXPECT_EQ(n_ubatch(8192), 2048);
  EXPECT_EQ(n_ubatch(2048), 1024);  // half the context
  EXPECT_EQ(n_ubatch(8192, true), 512);
  flags_.budgets.max_ram = size_t{1} << 30;  // on disk, which is read once for all of a step's tokens
  EXPECT_EQ(n_ubatch(8192), 2048);
}

// With the usual micro-batch several ways are about as fast; with a wide one, one of them is far ahead. The shape and the GPUs are
// a quarter of DeepSeek V3 on four of 64 GiB.
TEST_F(PlannedUbatch, WideMicroBatchesAreTriedWithUnlikeWays) {
  tools::Shape shape = *tools::find_shape("deepseek-v3");
  shape.n_layer = 16;
  const std::unique_ptr<Model> model = tools::load_shape(shape, {.type = tools::FileType::Q4_K_M}, {});
  std::vector<std::unique_ptr<ImaginedDevice>> gpus;
  std::vector<const DeviceModel*> devices{host_.get()};
  rates_ = {{.read_bytes_per_s = 300e9, .ops_per_s = 5e12}};
  for (int i = 0; i < 4; ++i) {
    gpus.push_back(std::make_unique<ImaginedDevice>("GPU" + std::to_string(i), size_t{16} << 30,
                                                    test::bytes_as_in_file));
    devices.push_back(gpus.back().get());
    rates_.push_back({.read_bytes_per_s = 2.7e12, .ops_per_s = 4e14, .bus_bytes_per_s = 53e9});
  }
  devices_ = devices;
  flags_.split_mode = SplitMode::layer;
  flags_.budgets.max_ram = size_t{1} << 40;
  // Of a prompt of half the context and an answer.
  const auto seconds = [&](const ContextOptions& context) {
    const PlanRequest r{model->architecture(), model->weights(), devices_, flags_, context, rates_};
    const SessionPlan plan = plan_session(r).front();
    return 8192 / plan.fit.speed.prefill_tokens_per_s + 128 / plan.fit.speed.decode_tokens_per_s;
  };
  const double automatic = seconds(ContextOptions{16384});
  EXPECT_LT(automatic, 5);  // 14.8 with a wide micro-batch for the best six ways of the usual one
  // Experts on the host, which options name, are one of the ways.
  flags_.n_cpu_moe = shape.n_layer;
  flags_.n_gpu_layers = shape.n_layer + 1;
  EXPECT_LE(automatic, 1.03 * seconds(ContextOptions{16384}));
}

}  // namespace
}  // namespace tandem
