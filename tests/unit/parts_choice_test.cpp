// In how many parts the planner sends prompts through layers that are divided over GPUs (exec/parts.h): by predicted time, on
// imagined GPUs with set speeds and links.
#include <gtest/gtest.h>

#include "engine/model.h"
#include "exec/parts.h"
#include "plan/fit.h"
#include "plan/imagined_device.h"
#include "plan/session_plan.h"
#include "support/metered_host.h"
#include "tools/synth/shape_model.h"

namespace tandem {
namespace {

struct Links {
  double bus = 64e9, peer = 0, peer_s = 0;
  double host = 1e14;  // bytes per second that the host adds
};

class PartsChoice : public testing::Test {
 protected:
  void SetUp() override {
    model_ = tools::load_shape(*tools::find_shape("llama-3.1-70b"), {.type = tools::FileType::Q4_K_M}, {});
    flags_.split_mode = SplitMode::tensor;
    flags_.n_gpu_layers = 99;
  }

  struct Found {
    PrefillParts parts;
    double seconds = 0, whole_s = 0;  // of a full step
    bool operator==(const Found&) const = default;
  };
  Found choose(size_t n_gpus, const Links& links, double read_bytes_per_s = 3e12, int64_t n_ubatch = 512) {
    rates_ = {{links.host, 1e12, 1e14, 0, 0}};
    rates_.resize(n_gpus + 1, {read_bytes_per_s, 4e14, links.bus, 0, 0});
    gpus_.clear();
    for (size_t i = 0; i < n_gpus; ++i) {
      rates_[i + 1].peer_bytes_per_s = links.peer;
      rates_[i + 1].peer_s = links.peer_s;
      gpus_.push_back(std::make_unique<ImaginedDevice>("GPU" + std::to_string(i), size_t{80} << 30, bytes));
    }
    std::vector<const DeviceModel*> list{&host_};
    for (const auto& gpu : gpus_) list.push_back(gpu.get());
    const DeviceModels devices(list);
    ContextOptions shape;
    shape.n_ctx = 4096;
    shape.n_ubatch = n_ubatch;
    shape.n_ubatch_given = true;
    const SessionPlan plan =
        plan_session({model_->architecture(), model_->weights(), devices, flags_, shape, rates_}).front();
    const SessionGraphs graphs = session_graphs(model_->architecture(), plan.shape);
    const std::vector<const Graph*> both = graphs.both();
    const FitRequest r{model_->architecture(), model_->weights(), devices, flags_, graphs.kv, both, rates_};
    Placement placement = plan.fit.placement;
    Found found{placement.parallel->parts};
    const auto seconds = [&] { return step_seconds(r, placement, *both.back(), prefill_load(r)); };
    found.seconds = seconds();
    placement.parallel->parts = {};
    found.whole_s = seconds();
    // No other number is faster, but for what the planner does not count as a gain.
    for (int64_t n = 2; n <= kMaxParts; ++n) {
      if (n > 2 && tokens_of_part(n_ubatch, n) < kFullRows) continue;
      placement.parallel->parts = {n, 1};
      EXPECT_GE(seconds(), 0.97 * found.seconds) << n << " parts instead of " << found.parts.count;
    }
    return found;
  }

  static constexpr int64_t kFullRows = 128;  // ImaginedDevice::full_product_rows()
  static size_t bytes(const Weight& w) { return w.n_bytes(); }

  std::unique_ptr<Model> model_;
  test::MeteredHost host_;
  std::vector<std::unique_ptr<ImaginedDevice>> gpus_;
  std::vector<DeviceRates> rates_;
  OffloadOptions flags_;
};

// Links that take much longer than computing: two parts hide all of that. Where both take about as long it takes more parts, to
// hide the sums behind attention too.
TEST_F(PartsChoice, MoreWhereLinksAndComputingAreAlike) {
  EXPECT_EQ(choose(4, {.bus = 25e9}).parts.count, 2);
  const Found alike = choose(2, {.bus = 64e9});
  EXPECT_GE(alike.parts.count, 3);
  EXPECT_LE(alike.seconds, 0.6 * alike.whole_s);
  EXPECT_GE(choose(8, {.peer = 360e9, .peer_s = 12e-6}).parts.count, 3);
}

// With four parts or more the host adds one sum while devices bring the next one (StepParts::sums_ahead).
TEST_F(PartsChoice, MoreWhereTheHostAddsSlowly) {
  const Found found = choose(4, {.bus = 25e9, .host = 2e11});
  EXPECT_GE(found.parts.count, 4);
}

// Little to hide, or nothing; the weights would be read again for it.
TEST_F(PartsChoice, FewOrNoneElsewhere) {
  EXPECT_LE(choose(2, {.peer = 360e9, .peer_s = 12e-6}).parts.count, 2);
  EXPECT_EQ(choose(2, {.peer = 1e13}).parts.count, 0);
  EXPECT_EQ(choose(2, {.bus = 64e9}, 1e11).parts.count, 0);
  EXPECT_EQ(choose(2, {.bus = 64e9}, 3e12, 16).parts, PrefillParts{});
}

// Parts of which GPUs compute fewer rows than they are made for would take longer than predicted.
TEST_F(PartsChoice, NotSoManyThatGpusAreIdle) {
  const Links links{.bus = 64e9};
  EXPECT_LE(choose(2, links, 3e12, 300).parts.count, 2);
  EXPECT_EQ(choose(2, links, 3e12, 400).parts.count, 3);
  const int64_t count = choose(2, links, 3e12, 2048).parts.count;
  EXPECT_GE(count, 3);
  EXPECT_GE(tokens_of_part(2048, count), kFullRows);
}

// A step that is not full goes in parts where that is faster too.
TEST_F(PartsChoice, FromTheSmallestStepThatIsFaster) {
  const Found found = choose(2, {.bus = 64e9});
  EXPECT_GT(found.parts.from, tokens_of_part(512, found.parts.count));
  EXPECT_LT(found.parts.from, 512);
}

}  // namespace
}  // namespace tandem
