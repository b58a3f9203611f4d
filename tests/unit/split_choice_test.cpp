// Which way to divide layers over GPUs the planner chooses where the user leaves it open: by predicted time, on imagined GPUs
// with set speeds and links.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/sanitized.h"
#include "engine/model.h"
#include "plan/imagined_device.h"
#include "plan/offload.h"
#include "plan/session_plan.h"
#include "support/gguf_bytes.h"
#include "support/metered_host.h"
#include "support/planned_machine.h"
#include "support/process.h"
#include "support/tiny_model.h"

namespace tandem {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr double kFast = 1e12, kSlow = 1e6;  // bytes per second of a link

class SplitChoice : public testing::Test {
 protected:
  void load(int64_t n_head_kv = 8) {
    test::TinyShape shape;
    shape.n_layer = 6;
    shape.n_embd = 256;
    shape.n_head = 8;
    shape.n_head_kv = n_head_kv;
    shape.n_ff = 1024;
    test::tiny_llama(shape, 9).write(directory_.path("model.gguf"));
    model_ = Model::load(directory_.path("model.gguf"));
  }
  // Each reads 1 GB/s, so that a token takes some milliseconds, and has no room for the whole model (29 MB).
  static constexpr size_t kUsual = (size_t{256} + 24) << 20, kLarge = size_t{1} << 30;
  void machine(size_t n_gpus, double link, size_t n_bytes = kUsual) {
    rates_ = {{1e12, 1e15, 1e12, 0, 0}};
    gpus_.clear();
    for (size_t i = 0; i < n_gpus; ++i) {
      gpus_.push_back(
          std::make_unique<ImaginedDevice>("GPU" + std::to_string(i), n_bytes, test::bytes_as_in_file));
      rates_.push_back({1e9, 1e15, link, 0, 0});
    }
  }
  DeviceModels devices() {
    std::vector<const DeviceModel*> list{&host_};
    for (const auto& gpu : gpus_) list.push_back(gpu.get());
    return DeviceModels(list);
  }
  SessionPlan plan() {
    ContextOptions shape;
    shape.n_ctx = 512;
    shape.n_ubatch = 64;
    shape.n_ubatch_given = true;
    return plan_session({model_->architecture(), model_->weights(), devices(), flags_, shape, rates_})
        .front();
  }
  SplitMode choice() { return plan().fit.choice.split; }
  std::string explained() {
    const SessionPlan p = plan();
    const SessionGraphs graphs = session_graphs(model_->architecture(), p.shape);
    const std::vector<const Graph*> both = graphs.both();
    return split_text({model_->architecture(), model_->weights(), devices(), flags_, graphs.kv, both, rates_},
                      p.fit);
  }

  test::TempDir directory_;
  std::unique_ptr<Model> model_;
  test::MeteredHost host_;
  std::vector<std::unique_ptr<ImaginedDevice>> gpus_;
  std::vector<DeviceRates> rates_;
  OffloadOptions flags_;
};

TEST_F(SplitChoice, GoesByTheLinks) {
  load();
  for (const size_t n : {2, 4, 8}) {
    SCOPED_TRACE(n);
    machine(n, kFast);
    EXPECT_EQ(choice(), SplitMode::tensor);
    machine(n, kSlow);
    EXPECT_EQ(choice(), SplitMode::layer);
    // GPUs that add without the host do not need it.
    for (size_t d = 1; d <= n; ++d) rates_[d].peer_bytes_per_s = kFast;
    EXPECT_EQ(choice(), SplitMode::tensor);
    // The shortest sum takes longer than a layer.
    for (size_t d = 1; d <= n; ++d) rates_[d].peer_s = 0.1;
    EXPECT_EQ(choice(), SplitMode::layer);
  }
}

TEST_F(SplitChoice, LeavesNoGpuWithoutHeads) {
  load(2);
  machine(2, kFast);
  EXPECT_EQ(choice(), SplitMode::tensor);
  machine(4, kFast);
  EXPECT_EQ(choice(), SplitMode::layer);
  flags_.split_mode = SplitMode::tensor;
  EXPECT_EQ(choice(), SplitMode::tensor);
}

TEST_F(SplitChoice, IsTheUsersIfSet) {
  load();
  for (const SplitMode mode : {SplitMode::none, SplitMode::layer, SplitMode::tensor}) {
    flags_.split_mode = mode;
    for (const double link : {kFast, kSlow}) {
      machine(2, link);
      EXPECT_EQ(choice(), mode);
    }
  }
}

// What does not go together with divided layers is kept.
TEST_F(SplitChoice, KeepsOtherOptions) {
  load();
  machine(2, kFast);
  flags_.kv_split = 128;
  EXPECT_EQ(choice(), SplitMode::layer);
  flags_ = {};
  flags_.tensor_overrides = {{"blk.1.ffn_up", "GPU1"}};
  EXPECT_EQ(choice(), SplitMode::layer);
  flags_.tensor_overrides = {{"blk.1.ffn_up", "CPU"}};
  EXPECT_EQ(choice(), SplitMode::tensor);
  flags_ = {};
  flags_.kv_on_host = Toggle::on;
  EXPECT_EQ(choice(), SplitMode::tensor);
}

// A GPU that is much slower than the first only stands in the way, unless the model does not fit without it.
TEST_F(SplitChoice, UsesOneGpuWhereTheOtherIsSlow) {
  load();
  machine(2, kFast, kLarge);
  rates_[2].read_bytes_per_s = 1e6;
  rates_[2].ops_per_s = 1e9;
  const SessionPlan one = plan();
  EXPECT_EQ(one.fit.choice.split, SplitMode::none);
  EXPECT_EQ(one.fit.bytes.devices[2].total(), 0u);
  flags_.tensor_split = {1, 1};
  EXPECT_NE(choice(), SplitMode::none);
  // What is about as fast as whole layers on both is not worth a GPU's memory.
  flags_ = {};
  flags_.tensor_overrides = {{"blk.1.ffn_up", "GPU0"}};  // does not go together with divided layers
  machine(2, kFast, kLarge);
  EXPECT_EQ(choice(), SplitMode::layer);
}

TEST_F(SplitChoice, IsExplainedInOneLine) {
  load();
  machine(2, kFast);
  const std::string fast = explained();
  // 6 layers with two all-reduces of 256 numbers there and back; the first GPU has the logits too.
  EXPECT_THAT(fast,
              AllOf(StartsWith("tensor: "), HasSubstr("; layer: "), HasSubstr("; none: "), HasSubstr("GPU0 "),
                    HasSubstr(" bytes a token, GPU1 "), HasSubstr(" t/s decoding")));
  EXPECT_EQ(fast.find('\n'), std::string::npos);
  machine(2, kSlow);
  EXPECT_THAT(explained(), StartsWith("layer: "));
  flags_.kv_split = 128;
  EXPECT_THAT(explained(), HasSubstr("; tensor: not with the other options"));
  flags_ = {};
  machine(1, kFast);
  EXPECT_EQ(explained(), "");
}

// The bytes of the line are those of the footprint of each way.
TEST_F(SplitChoice, ExplainsTheBytesOfEveryLink) {
  load();
  machine(2, kSlow);
  for (const SplitMode mode : {SplitMode::layer, SplitMode::tensor}) {
    flags_.split_mode = mode;
    const BusBytes bus = plan().fit.bytes.per_token;
    ASSERT_EQ(bus.links.size(), 3u);
    size_t sum = bus.activations + bus.logits;
    for (const size_t n : bus.collectives) sum += n;
    EXPECT_EQ(bus.links[1] + bus.links[2], sum);
    flags_.split_mode = SplitMode::automatic;
    EXPECT_THAT(explained(), HasSubstr(std::to_string(bus.links[1]) + " bytes a token, GPU1 " +
                                       std::to_string(bus.links[2])));
  }
}

// What is asked before speeds are measured.
TEST_F(SplitChoice, DevicesThatOptionsNameAreThere) {
  machine(2, kFast);
  const auto refusal = [&](const OffloadOptions& options) -> std::string {
    try {
      check_devices(options, devices());
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(refusal({}), "");
  EXPECT_EQ(refusal({.tensor_overrides = {{"a", "GPU1"}}, .tensor_split = {3, 1}}), "");
  EXPECT_THAT(refusal({.tensor_overrides = {{"a", "GPU2"}}}), HasSubstr("there is no device GPU2; there is: "));
  EXPECT_THAT(refusal({.tensor_split = {1, 1, 1}}), HasSubstr("3 shares, but there are 2 GPUs"));
  EXPECT_THAT(refusal({.split_mode = SplitMode::none, .main_gpu = 2}), HasSubstr("there are 2 GPUs, numbered from 0"));
}

TEST(SeveralGpus, ArePlannedWithoutBeingThere) {
  TANDEM_NEED_BINARY();
  const auto plan = [](const std::string& options) {
    return test::shell("", "plan llama-3.1-70b -c 8192 --gpu h100 " + options + " 2>&1");
  };
  const test::Outcome linked = plan("--gpus 4");
  EXPECT_EQ(linked.exit_code, 0) << linked.out;
  EXPECT_THAT(linked.out, AllOf(HasSubstr("h100 3"), HasSubstr("sums over GPUs 360.0 GB/s")));
  if (!kSanitized) {  // which slows this CPU so that it decides
    EXPECT_THAT(linked.out, AllOf(HasSubstr("over GPUs: "), HasSubstr("tensor: "), HasSubstr("layer: ")));
  }
  const test::Outcome layers = plan("--gpus 4 -sm layer --json");
  EXPECT_THAT(layers.out, HasSubstr("\"split_mode\": \"layer\""));
  EXPECT_EQ(plan("--gpus 0").exit_code, 2);
  EXPECT_EQ(test::shell("", "plan llama-3.1-8b --gpus 2 2>&1").exit_code, 2);
}

}  // namespace
}  // namespace tandem
