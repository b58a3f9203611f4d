// One schedule, two interpreters: the executor and the cost model both carry out every kind of command.
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "exec/placed_graph.h"
#include "support/split_rig.h"

namespace tandem {
namespace {

class Interpreters : public test::SplitRig {
 protected:
  void SetUp() override { load_both(6); }
};

TEST_F(Interpreters, BothHandleEveryKindOfCommand) {
  const std::vector<DeviceRates> rates{{1e9, 5e11, 1e9, 2e-6, 2e-7, 3e7}, {2e9, 1e12, 4e7, 1e-6, 1e-7}};
  std::set<CommandKind> kinds;
  for (const OffloadChoice& choice :
       {OffloadChoice{.n_gpu_layers = 7}, OffloadChoice{.n_gpu_layers = 7, .cache = PrefetchedCache{}},
        OffloadChoice{.n_gpu_layers = 2, .n_disk_layers = 4},
        OffloadChoice{.n_gpu_layers = 1, .streaming = Streaming::always, .n_disk_layers = 5}}) {
    test::SimDevice sim({.copy_bytes_per_s = 1e9});
    const std::vector<Device*> devices{host_.get(), &sim};
    const auto s = session(*dense_, devices, choice);
    EXPECT_EQ(logits(*s), cpu_logits(*dense_));
    const SessionGraphs graphs = session_graphs(dense_->architecture(), SessionShape{0, 16});
    const Schedule schedule = make_schedule(graphs.decode, s->placement().placement, 2);
    for (const Command& command : schedule.commands) kinds.insert(command.kind);
    const StepLoad load{.n_past = 40};
    EXPECT_GT(step_cost(graphs.decode, schedule, devices, rates, graphs.kv, load).seconds, 0);
  }
  for (int kind = 0; kind < kCommandKinds; ++kind) {
    EXPECT_TRUE(kinds.contains(static_cast<CommandKind>(kind))) << "no schedule here has kind " << kind;
  }
  EXPECT_EQ(kinds.size(), kCommandKinds);
}

}  // namespace
}  // namespace tandem
