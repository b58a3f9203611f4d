// Work that is shared by threads while planning: the loop itself, and plans that do not depend on how many there are.
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <stdexcept>

#include "base/at_once.h"
#include "cpu/cpu_device.h"
#include "engine/model.h"
#include "plan/context_fit.h"
#include "plan/imagined_device.h"
#include "plan/session_plan.h"
#include "support/planned_machine.h"
#include "tools/synth/shape_model.h"

namespace tandem {
namespace {

TEST(AtOnce, EachItemIsDoneOnce) {
  for (const size_t n : {0, 1, 2, 7, 1000}) {
    std::vector<std::atomic<int>> done(n);
    for_each_at_once(n, [&](size_t i) { ++done[i]; });
    for (size_t i = 0; i < n; ++i) EXPECT_EQ(done[i], 1) << i << " of " << n;
  }
}

TEST(AtOnce, TheFirstErrorIsThrownWhenAllAreDone) {
  std::atomic<int> n_done = 0;
  const auto item = [&](size_t i) {
    ++n_done;
    if (i == 3 || i == 90) throw std::runtime_error(std::to_string(i));
  };
  try {
    for_each_at_once(100, item);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "3");
  }
  EXPECT_EQ(n_done, 100);
}

// Lets this thread, and those that it starts, run on one of its processors.
class OneProcessor {
 public:
  OneProcessor() {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++i) {
      if (CPU_ISSET(i, &before_)) CPU_SET(i, &one);
    }
    EXPECT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  }
  ~OneProcessor() { sched_setaffinity(0, sizeof before_, &before_); }

 private:
  cpu_set_t before_;
};

struct ManyWays {
  const char* shape;
  double vram_gib;
  std::optional<double> ram_gib;
};

// All plans, with all that they say.
std::string plans_text(const ManyWays& ways) {
  constexpr double kGiB = 1 << 30;
  tools::Shape shape = *tools::find_shape(ways.shape);
  shape.n_layer = 8;
  const std::unique_ptr<Model> model = tools::load_shape(shape, {.type = tools::FileType::Q4_K_M}, {});
  const std::unique_ptr<DeviceModel> host = cpu::make_cpu_device({1, 1});
  const auto bytes = [&](double gib) { return static_cast<size_t>(gib * kGiB); };
  const ImaginedDevice first("GPU0", bytes(ways.vram_gib), test::bytes_as_in_file),
      second("GPU1", bytes(ways.vram_gib / 2), test::bytes_as_in_file);
  OffloadOptions options;
  if (ways.ram_gib) options.budgets.max_ram = bytes(*ways.ram_gib);
  std::string text;
  for (const DeviceModels& devices : {DeviceModels{host.get(), &first}, {host.get(), &first, &second}}) {
    std::vector<DeviceRates> rates(devices.size(), test::kPlannerGpu);
    rates[0] = test::kPlannerHost;
    const std::vector<SessionPlan> plans =
        plan_session({model->architecture(), model->weights(), devices, options, {}, rates});
    for (const SessionPlan& plan : plans) {
      text += std::to_string(plan.shape.n_ctx) + " " + std::to_string(plan.shape.n_ubatch) + " " +
              summary(devices, plan.fit) + "\n";
      for (size_t d = 0; d < devices.size(); ++d) text += std::to_string(device_needs(plan.fit, d)) + "\n";
    }
  }
  return text;
}

TEST(PlanThreads, ChangeNoPlan) {
  for (const ManyWays& ways :
       {ManyWays{"llama-3.1-8b", 2.5, {}}, {"llama-3.1-8b", 0.6, {}}, {"qwen3-30b-a3b", 1, 1.7}}) {
    SCOPED_TRACE(ways.shape);
    const std::string several = plans_text(ways);
    const OneProcessor one;
    EXPECT_EQ(plans_text(ways), several);
    EXPECT_NE(several, "");
  }
}

}  // namespace
}  // namespace tandem
