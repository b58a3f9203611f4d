// One schedule, two interpreters: both the executor and the cost model carry out every kind of command. And
// the slots that the executor fills stay as they are while somebody reads them.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "base/error.h"
#include "exec/disk_stream.h"
#include "exec/placed_graph.h"
#include "support/metered_host.h"
#include "support/sim_disk.h"
#include "support/tensor_rig.h"

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
    const SessionGraphs graphs = session_graphs(dense_->architecture(), ContextOptions{0, 16});
    const Schedule schedule = make_schedule(graphs.decode, s->placement().placement, 2);
    for (const Command& command : schedule.commands) kinds.insert(command.kind);
    const StepLoad load{.n_past = 40};
    EXPECT_GT(step_cost(graphs.decode, schedule, devices, rates, graphs.kv, load).seconds, 0);
  }
  // A stage of ranks; tests/golden/families_stages_test.cpp executes those.
  const std::unique_ptr<Model> stage = Model::load(directory_.path("dense.gguf"));
  stage->keep_layers({2, 4});
  const SessionGraphs part = session_graphs(stage->architecture(), ContextOptions{0, 16});
  const Schedule of_part = make_schedule(part.decode, Placement::host_only(6), 1);
  for (const Command& command : of_part.commands) kinds.insert(command.kind);
  const std::vector<Device*> host{host_.get()};
  EXPECT_GT(step_cost(part.decode, of_part, host, std::span(rates).first(1), part.kv, {}).seconds, 0);
  {
    test::SimMachine machine(*host_, 2);
    OffloadOptions flags;
    flags.n_gpu_layers = 7;
    flags.split_mode = SplitMode::tensor;
    Session s(*dense_, machine.devices(), options(flags));
    const SessionGraphs graphs = session_graphs(dense_->architecture(), ContextOptions{0, 16});
    const PlacedGraph placed(graphs.decode, s.placement().placement);
    for (const Command& c : make_schedule(*placed, s.placement().placement, 3).commands) kinds.insert(c.kind);
    Placement parted = s.placement().placement;  // tests/faults/parts_test.cpp executes those
    parted.parallel->parts = {2, 1};
    const SessionGraphs wide = session_graphs(dense_->architecture(), ContextOptions{0, 48});
    const PartedGraph graph = parted_graph(placed_graph(wide.prefill, parted), parted).value();
    const Schedule in_parts = make_schedule(graph.graph, parted, 3, Arenas::laid_out, graph.parts);
    for (const Command& c : in_parts.commands) kinds.insert(c.kind);
  }
  for (int kind = 0; kind < kCommandKinds; ++kind) {
    EXPECT_TRUE(kinds.contains(static_cast<CommandKind>(kind))) << "no schedule here has kind " << kind;
  }
  EXPECT_EQ(kinds.size(), kCommandKinds);
}

// A disk whose reads are complete when they start.
class InstantDisk final : public DiskReader {
 public:
  Ticket start(std::span<const DiskRead> reads) override {
    for (const DiskRead& r : reads) memcpy(r.to, r.from, r.n_bytes);
    return 0;
  }
  bool is_done(Ticket) override { return true; }
  void wait(Ticket) override {}
};

// A slot of the host that a device still fetches from is not read into, also when the device has joined what
// another group of the same slot had brought to it.
TEST(DiskSlots, AreNotOverwrittenWhileADeviceFetchesFromThem) {
  constexpr size_t kBytes = kDiskAlignment;
  constexpr GpuId kGpu(0);
  const std::vector<std::byte> ones(kBytes, std::byte{1}), twos(kBytes, std::byte{2});
  test::MeteredHost host;
  test::SimDevice sim({.copy_bytes_per_s = kBytes / 0.05});
  const std::vector<Device*> devices{&host, &sim};
  InstantDisk reader;
  DiskStream disk(devices, &reader);
  disk.reserve({1, kBytes});
  const auto layout = [](const std::vector<std::byte>& bytes) {
    return DiskLayout{{{bytes.data(), kBytes, 0}}, kBytes};
  };
  const DevicePtr target = sim.alloc(kBytes), other = sim.alloc(sizeof(float));
  Weight weight{.name = "w", .n_rows = 1, .n_cols = kBytes / sizeof(float)};
  float value = 0;
  const Weight one_float{
      .name = "v", .n_rows = 1, .n_cols = 1, .data = reinterpret_cast<const std::byte*>(&value)};

  const Event before = sim.fetch(other, one_float, 0);
  disk.fetch(layout(ones), 0);
  disk.wait(0);
  weight.data = disk.slot(0);
  disk.lend(0, kGpu, sim.fetch(target, weight, 0));
  sim.join(before);
  disk.joined(0, kGpu, before);
  disk.fetch(layout(twos), 0);

  std::vector<std::byte> found(kBytes);
  sim.copy_out(found.data(), target, kBytes);
  sim.wait(sim.record());
  EXPECT_EQ(found, ones);
  disk.forget();
  sim.free(target);
  sim.free(other);
}

}  // namespace
}  // namespace tandem
