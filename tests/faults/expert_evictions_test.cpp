// Evictions: an expert that comes to a slot of a GPU must not overwrite one that a run still reads. These tests show that the
// simulated device ends the process when one does, in memory and with experts on disk, so that all other tests of experts,
// which run on it, would not pass.
#include <gtest/gtest.h>

#include <utility>

#include "support/expert_rig.h"
#include "support/forwarding_device.h"

namespace tandem {
namespace {

// A simulated device that fetches as if a run had not been given to it yet that has.
class LateDevice final : public test::ForwardingDevice {
 public:
  LateDevice() : ForwardingDevice(std::make_unique<test::SimDevice>(test::SimOptions{})) {}

  Event fetch(DevicePtr to, const Weight& weight, Event after) override {
    late_.push_back({to, weight, after});
    return 0;
  }
  void run(Executable& executable, const StepShape& shape) override {
    ForwardingDevice::run(executable, shape);
    for (const Fetch& f : std::exchange(late_, {})) ForwardingDevice::fetch(f.to, f.weight, f.after);
  }

 private:
  struct Fetch {
    DevicePtr to;
    const Weight& weight;
    Event after;
  };
  std::vector<Fetch> late_;
};

class ExpertEvictions : public test::ExpertRig {};

TEST_F(ExpertEvictions, UnderARunEndTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  for (const bool on_disk : {false, true}) {
    SCOPED_TRACE(on_disk ? "on disk" : "in memory");
    OffloadChoice c = choice(2, 0.5, kOfAll / 4);
    c.chosen_experts = on_disk;
    const auto run_late = [&] {
      LateDevice late;
      const auto s = session({host_.get(), &late}, c, options());
      for (int i = 0; i < 3; ++i) logits(*s), s->truncate(0);
    };
    EXPECT_DEATH(run_late(), "simulated device: a fetch overwrites what a run reads");
    test::SimDevice sim({});
    const auto s = session({host_.get(), &sim}, c, options());
    for (int i = 0; i < 3; ++i) expect_near(logits(*s), expected_), s->truncate(0);
    EXPECT_GT(on_gpu(*s).n_fetched + on_gpu(*s).n_kept, 10u);
  }
}

}  // namespace
}  // namespace tandem
