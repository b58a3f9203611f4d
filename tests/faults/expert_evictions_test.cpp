// Evictions: an expert that comes to a slot of a GPU must not overwrite one that a run still reads. These tests show that the
// simulated device ends the process when one does, in memory and with experts on disk, so that all other tests of experts,
// which run on it, would not pass.
#include <gtest/gtest.h>

#include <utility>

#include "support/expert_rig.h"

namespace tandem {
namespace {

// A simulated device that fetches as if a run had not been given to it yet that has.
class LateDevice final : public Device {
 public:
  const DeviceInfo& info() const override { return sim_.info(); }
  std::string why_unsupported(const Graph& graph, const Node& node) const override {
    return sim_.why_unsupported(graph, node);
  }
  DTypeSupport dtype_support(DType dtype) const override { return sim_.dtype_support(dtype); }
  MemoryInfo memory_info() const override { return sim_.memory_info(); }
  size_t weight_bytes(const Weight& weight) const override { return sim_.weight_bytes(weight); }
  size_t scratch_bytes(const Segment& segment) const override { return sim_.scratch_bytes(segment); }
  DevicePtr alloc(size_t n_bytes) override { return sim_.alloc(n_bytes); }
  void free(DevicePtr address) override { sim_.free(address); }
  void upload(DevicePtr to, const Weight& weight) override { sim_.upload(to, weight); }
  void copy_in(DevicePtr to, const void* from, size_t n_bytes) override { sim_.copy_in(to, from, n_bytes); }
  void copy_out(void* to, DevicePtr from, size_t n_bytes) override { sim_.copy_out(to, from, n_bytes); }
  void copy_within(DevicePtr to, DevicePtr from, size_t n_bytes) override {
    sim_.copy_within(to, from, n_bytes);
  }
  Event record() override { return sim_.record(); }
  void wait(Event event) override { sim_.wait(event); }
  Event fetch(DevicePtr to, const Weight& weight, Event after) override {
    late_.push_back({to, weight, after});
    return 0;
  }
  void join(Event fetched) override { sim_.join(fetched); }
  std::unique_ptr<Executable> compile(const Segment& segment) override { return sim_.compile(segment); }
  void run(Executable& executable, const StepShape& shape) override {
    sim_.run(executable, shape);
    for (const Fetch& f : std::exchange(late_, {})) sim_.fetch(f.to, f.weight, f.after);
  }

 private:
  struct Fetch {
    DevicePtr to;
    const Weight& weight;
    Event after;
  };
  test::SimDevice sim_{{}};
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
