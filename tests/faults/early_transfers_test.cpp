// A result that the host needs is copied as soon as it is computed: later work on the device does not delay
// the copy, so the device and the host compute at the same time.
#include <gtest/gtest.h>

#include "base/error.h"
#include "exec/executor.h"
#include "graph/builder.h"
#include "support/sim_device.h"
#include "support/sim_host.h"

namespace tandem {
namespace {

constexpr int64_t kCols = 64;
constexpr DeviceId kSim = GpuId(0);

class EarlyTransfers : public testing::Test {
 protected:
  // ids -> x = A(embedding) on SIM; B(x) on SIM and C(x) on the host, each `run` apart from the others;
  // joined on SIM. `part_device` none leaves B to the placement: in one segment with A.
  Graph graph(std::optional<DeviceId> part_device) {
    GraphBuilder b({.max_tokens = 4, .max_outputs = 4});
    const TensorId x = b.linear(b.embed(&table_), &square_);
    const TensorId on_sim = b.linear(x, &square_);
    const TensorId on_host = b.linear(x, &square_);
    const TensorId all = b.join(on_sim, on_host);
    Graph g = b.finish(b.gather_outputs(all));
    g.nodes[2].device = part_device;
    g.nodes[3].device = DeviceId::host();
    return g;
  }

  static std::vector<float> run(Executor& executor, Program& program) {
    static constexpr int32_t kIds[] = {5, 0, 3, 7}, kOutputs[] = {0, 1, 2, 3};
    StepInputs inputs;
    inputs.shape = {4, 4};
    inputs.data[static_cast<size_t>(Input::ids)] = kIds;
    inputs.data[static_cast<size_t>(Input::outputs)] = kOutputs;
    executor.run(program, inputs);
    const std::span<const float> logits = executor.logits();
    return {logits.begin(), logits.end()};
  }

  static Placement on(DeviceId device) {
    Placement p = Placement::host_only(0);
    p.input = device;
    return p;
  }

  std::vector<float> cpu_logits() {
    Executor executor({host_.get()}, on(DeviceId::host()), {{}});
    Graph g = graph(std::nullopt);
    g.nodes[3].device.reset();
    const auto program = executor.compile(std::move(g));
    return run(executor, *program);
  }

  void SetUp() override {
    for (size_t i = 0; i < data_.size(); ++i) data_[i] = static_cast<float>(i % 23) * 0.01f - 0.1f;
    table_ = {"table", DType::F32, 1, 8, kCols, reinterpret_cast<const std::byte*>(data_.data())};
    square_ = {"square", DType::F32, 1, kCols, kCols, reinterpret_cast<const std::byte*>(data_.data())};
  }

  std::vector<float> data_ = std::vector<float>(kCols * kCols);
  Weight table_, square_;
  std::unique_ptr<Device> host_ = cpu::make_cpu_device({1, 1});
};

TEST_F(EarlyTransfers, TheHostAndADeviceComputeAtTheSameTime) {
  for (const std::optional<DeviceId> part_device : {std::optional(kSim), std::optional<DeviceId>()}) {
    double now = 0;
    test::SimDevice sim({.times = {.run_s =
                                       [](const Segment& s, const StepShape&) {
                                         double n = 0;
                                         for (int32_t i : s.nodes) {
                                           n += std::holds_alternative<LinearOp>(
                                               s.graph->nodes[static_cast<size_t>(i)].op);
                                         }
                                         return n;  // one second per product
                                       },
                                   .host_s = &now}});
    test::SimHost host(now, [](const Segment&, const StepShape&, double) { return 1.0; });
    Executor executor({&host, &sim}, on(kSim), {{}, {}});
    const auto program = executor.compile(graph(part_device));
    EXPECT_EQ(run(executor, *program), cpu_logits());
    // A, then B and C at the same time; one after the other if B is in A's segment.
    EXPECT_DOUBLE_EQ(now, part_device ? 2.0 : 3.0);
  }
}

TEST_F(EarlyTransfers, TheHostWaitsOnlyForTheCopy) {
  double now = 0;
  test::SimDevice sim({.times = {.run_s =
                                     [](const Segment& s, const StepShape&) {
                                       return s.nodes.front() == 2 ? 5.0 : 1.0;  // B is long
                                     },
                                 .host_s = &now}});
  double begun = 0;
  test::SimHost host(now, [&](const Segment&, const StepShape&, double at) {
    begun = at;
    return 1.0;
  });
  Executor executor({&host, &sim}, on(kSim), {{}, {}});
  const auto program = executor.compile(graph(kSim));
  run(executor, *program);
  EXPECT_DOUBLE_EQ(begun, 1.0);
  EXPECT_DOUBLE_EQ(now, 7.0);  // A, B, and the join
}

// The copy to the host arrives while later segments run, so no other tensor may use its memory until then.
TEST_F(EarlyTransfers, SlowCopiesGiveTheLogitsOfTheCpu) {
  const std::vector<float> expected = cpu_logits();
  test::SimDevice sim({.copy_bytes_per_s = 1e6});
  Executor executor({host_.get(), &sim}, on(kSim), {{}, {}});
  const auto program = executor.compile(graph(kSim));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run(executor, *program), expected);
}

TEST_F(EarlyTransfers, AFailedCopyIsACleanErrorAndTheNextStepIsRight) {
  const std::vector<float> expected = cpu_logits();
  test::SimDevice works({});
  {
    Executor executor({host_.get(), &works}, on(kSim), {{}, {}});
    run(executor, *executor.compile(graph(kSim)));
  }
  const int64_t n_weights = 2;  // copied when the graph is compiled
  for (int64_t i = n_weights; i < works.n_copies(); ++i) {
    test::SimDevice sim({.copy_bytes_per_s = 1e6, .fail_copy = i});
    Executor executor({host_.get(), &sim}, on(kSim), {{}, {}});
    const auto program = executor.compile(graph(kSim));
    EXPECT_THROW(run(executor, *program), Error) << i;
    EXPECT_EQ(run(executor, *program), expected) << i;
  }
}

}  // namespace
}  // namespace tandem
