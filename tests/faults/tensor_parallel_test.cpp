// Layers divided over simulated devices: the logits are those of one device, memory and bytes over every link are as
// planned, and devices that fail or hang are reported.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "engine/session_file.h"
#include "exec/placed_graph.h"
#include "exec/tensor_cuts.h"
#include "plan/rates.h"
#include "support/forwarding_device.h"
#include "support/sim_host.h"
#include "support/tensor_rig.h"

namespace tandem {
namespace {

using testing::HasSubstr;

class TensorParallelTest : public test::TensorRig {
 protected:
  void SetUp() override { load_divisible(); }

  void expect_same(const Model& model, const OffloadOptions& flags, size_t n_gpus, float tolerance = 1e-4f) {
    SCOPED_TRACE(std::to_string(n_gpus) + " devices");
    test::SimMachine machine(*host_, n_gpus);
    EngineOptions o = options(flags, DType::F32);
    Session session(model, machine.devices(), o);
    EXPECT_EQ(session.placement().placement.parallel.has_value(), n_gpus > 1);
    EXPECT_LE(apart(logits(session), cpu_logits(model, options({}, DType::F32))), tolerance);
    expect_as_planned(session, machine);
  }
};

TEST_F(TensorParallelTest, LogitsAreThoseOfOneDevice) {
  for (const size_t n : {1, 2, 3, 4, 8}) {
    expect_same(*dense_, divided(std::vector<double>(n, 1)), n);
    expect_same(*moe_, divided(std::vector<double>(n, 1)), n);
  }
}

TEST_F(TensorParallelTest, SharesMayDiffer) {
  for (const std::vector<double>& shares :
       {std::vector<double>{3, 1}, {1, 5}, {1, 0, 2}, {0.2, 0.3, 0.5}, {1, 100}}) {
    expect_same(*dense_, divided(shares), shares.size());
    expect_same(*moe_, divided(shares), shares.size());
  }
}

// Heads of 8 columns, and blocks of 32 or 256: an output projection whose parts are no whole blocks is divided by rows.
TEST_F(TensorParallelTest, QuantizedMatricesAreCutAtBlocks) {
  for (const DType dtype : {DType::Q8_0, DType::Q4_0, DType::Q4_K, DType::Q6_K}) {
    SCOPED_TRACE(dtype_name(dtype));
    test::TinyShape shape = shape_;
    shape.dtype = dtype;
    shape.n_embd = 256;
    shape.n_ff = 768;
    const auto model = load("quantized.gguf", shape);
    shape.n_expert = 4;
    shape.n_expert_used = 2;
    const auto moe = load("quantized_moe.gguf", shape);
    for (const size_t n : {2, 3}) {
      expect_same(*model, divided(std::vector<double>(n, 1)), n, 2e-2f);
      expect_same(*moe, divided(std::vector<double>(n, 1)), n, 2e-2f);
    }
  }
}

TEST_F(TensorParallelTest, CachesInHostMemory) {
  OffloadOptions flags = divided({1, 1, 1});
  flags.kv_on_host = Toggle::on;
  expect_same(*dense_, flags, 3);
  expect_same(*moe_, flags, 3);
}

TEST_F(TensorParallelTest, SomeLayersOnTheHost) {
  OffloadOptions flags = divided({2, 1});
  for (const int64_t n : {1, 2, 3}) {
    flags.n_gpu_layers = n;
    test::SimMachine machine(*host_, 2);
    Session session(*dense_, machine.devices(), options(flags, DType::F32));
    EXPECT_LE(apart(logits(session), cpu_logits(*dense_, options({}, DType::F32))), 1e-4f) << n;
    expect_as_planned(session, machine);
  }
}

TEST_F(TensorParallelTest, ExpertsOnTheHost) {
  OffloadOptions flags = divided({1, 1});
  flags.n_cpu_moe = 2;
  expect_same(*moe_, flags, 2);
}

TEST_F(TensorParallelTest, QuantizedCaches) {
  test::TinyShape shape = shape_;
  shape.n_embd = 256;  // heads of 32
  const auto model = load("wide.gguf", shape);
  test::SimMachine machine(*host_, 3);
  Session session(*model, machine.devices(), options(divided({1, 1, 1}), DType::Q8_0));
  EXPECT_LE(apart(logits(session), cpu_logits(*model, options({}, DType::Q8_0))), 1e-2f);
  expect_as_planned(session, machine);
}

// Each device fetches its share alone.
TEST_F(TensorParallelTest, StreamedLayers) {
  for (const auto* model : {dense_.get(), moe_.get()}) {
    OffloadOptions flags = divided({1, 1, 1});
    flags.n_gpu_layers = 1;
    flags.stream = Toggle::on;
    test::SimMachine machine(*host_, 3);
    Session session(*model, machine.devices(), options(flags, DType::F32));
    EXPECT_LE(apart(logits(session), cpu_logits(*model, options({}, DType::F32))), 1e-4f);
    const auto fetched = [&] {
      std::vector<uint64_t> bytes;
      for (size_t i = 0; i < 3; ++i) bytes.push_back(machine.gpu(i).fetched_bytes());
      return bytes;
    };
    const std::vector<uint64_t> before = fetched();
    decode_one(session);
    const std::vector<uint64_t> after = fetched();
    uint64_t sum = 0, most = 0;
    for (size_t i = 0; i < 3; ++i) sum += after[i] - before[i];
    for (size_t i = 0; i < 3; ++i) most = std::max(most, after[i] - before[i]);
    EXPECT_EQ(sum, session.placement().bytes.per_token.weights);
    EXPECT_LT(most, sum / 2);
    for (size_t d = 1; d < 4; ++d)
      EXPECT_EQ(machine.gpu(d - 1).used_bytes(), session.placement().bytes.devices[d].total());
  }
}

// Two all-reduces a layer: each device gives its part to the host, and takes the sum. The logits are gathered once.
TEST_F(TensorParallelTest, BytesOverLinksFollowTheFormula) {
  for (const auto* model : {dense_.get(), moe_.get()}) {
    for (const size_t n : {2, 4}) {
      test::SimMachine machine(*host_, n);
      Session session(*model, machine.devices(), options(divided(std::vector<double>(n, 1))));
      session.append(prompt(5));
      const BusBytes& bus = session.placement().bytes.per_token;
      EXPECT_EQ(bus.n_all_reduce, 2u * static_cast<size_t>(shape_.n_layer));
      EXPECT_EQ(bus.n_all_gather, 1u);
      ASSERT_EQ(bus.collectives.size(), n + 1);
      size_t vocab = 0;
      for (size_t d = 1; d <= n; ++d) {
        const size_t sums = bus.n_all_reduce * 2 * static_cast<size_t>(shape_.n_embd) * sizeof(float);
        EXPECT_GE(bus.collectives[d], sums);
        vocab += bus.collectives[d] - sums;
      }
      EXPECT_EQ(vocab,
                2u * static_cast<size_t>(shape_.n_vocab) * sizeof(float));  // parts, and all on the first
      expect_as_planned(session, machine);
    }
  }
}

TEST_F(TensorParallelTest, TheHostMayTakePart) {
  for (const auto* model : {dense_.get(), moe_.get()}) {
    test::SimMachine machine(*host_, 2);
    EngineOptions o = options({}, DType::F32);
    const ContextOptions context = o.context;
    const SessionGraphs graphs = session_graphs(model->architecture(), context);
    o.placement = place(model->architecture(), model->weights(), machine.devices(), divided({1, 1}), 99);
    o.placement.parallel->devices.push_back(DeviceId::host());
    o.placement.parallel->shares.push_back(1);
    divide_caches(o.placement, graphs.decode);
    Session session(*model, machine.devices(), o);
    EXPECT_LE(apart(logits(session), cpu_logits(*model, options({}, DType::F32))), 1e-4f);
    expect_as_planned(session, machine);
  }
}

TEST_F(TensorParallelTest, GuessesAreChecked) {
  EngineOptions o = options({}, DType::F32);
  o.context.n_draft = 3;
  Session alone(*dense_, {host_.get()}, o);
  test::SimMachine machine(*host_, 3);
  o.offload = divided({1, 1, 1});
  Session session(*dense_, machine.devices(), o);
  EXPECT_LE(apart(guessed_logits(session), guessed_logits(alone)), 1e-4f);
}

// A saved cache does not tell where it was.
TEST_F(TensorParallelTest, SavedSessionsLoadAnywhere) {
  test::SimMachine machine(*host_, 3);
  const auto path = [&](const char* name) { return directory_.path(name); };
  Session parted(*dense_, machine.devices(), options(divided({1, 1, 1}), DType::F32));
  Session alone(*dense_, {host_.get()}, options({}, DType::F32));
  const std::vector<int32_t> ids = prompt(37);
  parted.append(ids);
  alone.append(ids);
  save_session(parted, path("parted"));
  save_session(alone, path("alone"));
  Session from_alone(*dense_, machine.devices(), options(divided({1, 2, 1}), DType::F32));
  Session from_parted(*dense_, {host_.get()}, options({}, DType::F32));
  SessionFile(path("alone"), from_alone).restore(from_alone, ids.size());
  SessionFile(path("parted"), from_parted).restore(from_parted, ids.size());
  const std::vector<int32_t> next{5, 280};
  const auto append = [&](Session& session) {
    const std::span<const float> row = session.append(next);
    return std::vector<float>(row.begin(), row.end());
  };
  const std::vector<float> expected = append(alone);
  EXPECT_LE(apart(append(from_alone), expected), 1e-4f);
  EXPECT_LE(apart(append(from_parted), expected), 1e-4f);
}

TEST_F(TensorParallelTest, FailuresAreErrors) {
  expect_failures_are_errors(
      [&](const std::vector<Device*>& devices) {
        Session session(*dense_, devices, options(divided({1, 1})));
        logits(session);
      },
      7, 3);
}

TEST_F(TensorParallelTest, ADeviceThatHangsIsNamed) {
  test::SimDevice first({.name = "SIM0"}), other({.name = "SIM1", .hang_run = 4});
  EngineOptions o = options(divided({1, 1}));
  o.make_collectives = [](const auto&) { return make_host_collectives(1); };
  Session session(*dense_, {host_.get(), &first, &other}, o);
  for (int i = 0; i < 2; ++i) {
    try {
      session.append(prompt(3));
      ADD_FAILURE() << "no error";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::io);
      const char* expected = i == 0 ? "SIM1 has not answered within 1 s" : "has not answered before";
      EXPECT_THAT(e.what(), HasSubstr(expected));
    }
  }
  other.release();
  for (test::SimDevice* device : {&first, &other}) device->wait(device->record());  // before its buffers go
}

TEST_F(TensorParallelTest, WhatDoesNotGoTogetherIsRefused) {
  const auto expect_refused = [&](const OffloadOptions& flags, const char* message) {
    test::SimMachine machine(*host_, 2);
    try {
      Session session(*dense_, machine.devices(), options(flags));
      ADD_FAILURE() << message;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
      EXPECT_THAT(e.what(), HasSubstr(message));
    }
  };
  OffloadOptions flags = divided({1, 1});
  flags.kv_split = 16;
  expect_refused(flags, "heads of the cache are divided over GPUs");
  flags = divided({1, 1});
  flags.kv_prefetched = true;
  expect_refused(flags, "a cache that is divided over GPUs stays there");
  flags = divided({1, 1});
  flags.gpu_rows = 0.5;
  expect_refused(flags, "rows are divided over GPUs, and not with the CPU");
  flags = divided({1, 1});
  flags.expert_cache = 1 << 20;
  expect_refused(flags, "GPUs keep whole experts");
  flags = divided({1, 1});
  flags.disk = Toggle::on;
  expect_refused(flags, "columns of matrices are not read from disk");
  flags = divided({1, 1});
  flags.tensor_overrides = {{"ffn_up", "SIM1"}};
  expect_refused(flags, "only CPU can be named");
}

// What a device cannot run, the host runs for all.
TEST_F(TensorParallelTest, UnsupportedOpsRunOnTheHost) {
  class Picky final : public test::ForwardingDevice {
   public:
    explicit Picky(const char* name)
        : ForwardingDevice(std::make_unique<test::SimDevice>(test::SimOptions{.name = name})) {}
    std::string why_unsupported(const Graph& graph, const Node& node) const override {
      const auto* op = std::get_if<GluOp>(&node.op);
      const bool refuses = op && graph.tensor(op->gate).name.starts_with("blk.1.");
      return refuses ? "no kernel" : ForwardingDevice::why_unsupported(graph, node);
    }
  };
  Picky first("SIM0"), second("SIM1");
  Session session(*dense_, {host_.get(), &first, &second}, options(divided({1, 1}), DType::F32));
  EXPECT_FALSE(session.placement().fallbacks.empty());
  EXPECT_LE(apart(logits(session), cpu_logits(*dense_, options({}, DType::F32))), 1e-4f);
}

// --explain says what each device has, and what its link carries.
TEST_F(TensorParallelTest, IsExplained) {
  test::SimMachine machine(*host_, 2);
  std::string text;
  const Session session(*dense_, machine.devices(), options(divided({3, 1})),
                        [&](const std::string& t) { text = t; });
  EXPECT_THAT(text, HasSubstr("SIM0 3 heads "));
  EXPECT_THAT(text, HasSubstr(" + SIM1 1 heads "));
  const BusBytes& bus = session.placement().bytes.per_token;
  EXPECT_THAT(text, HasSubstr("link of SIM1, per decoded token: " + std::to_string(bus.collectives[2]) +
                              " bytes of 6 all-reduces and 1 all-gathers"));
}

// Only CUDA devices can use NCCL; without its library, the sentence says what is missing.
TEST(NcclCollectives, SayWhatIsMissing) {
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const char* at : {"../lib/tandem/libtandem_nccl.so", "libtandem_nccl.so"}) {
    if (std::filesystem::exists(folder / at)) GTEST_SKIP() << "this build has NCCL";
  }
  try {
    make_nccl_collectives({});
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::io);
    EXPECT_THAT(e.what(), HasSubstr("this tandem was built without NCCL"));
  }
}

// In simulated time, with the speeds of the devices and their links set. The planner predicts a step; where either takes much
// longer, it is as long as what the devices compute, or as what a link carries.
class TensorTime : public test::TensorRig {
 protected:
  struct Machine {
    double read, bus;  // bytes per second, of each GPU
  };

  void SetUp() override {
    test::TinyShape shape;
    shape.n_layer = 6;
    shape.n_embd = 256;
    shape.n_head = 8;
    shape.n_head_kv = 8;
    shape.n_ff = 1024;
    dense_ = load("dense.gguf", shape);
  }

  static std::vector<DeviceRates> rates(const Machine& m, size_t n) {
    std::vector<DeviceRates> list{{1e13, 1e15, 1e13, 0, 0}};
    list.resize(n + 1, DeviceRates{m.read, 1e15, m.bus, 0, 0});
    return list;
  }

  struct Seconds {
    double measured, predicted, compute, link;
  };
  Seconds step(const Machine& machine, size_t n) {
    double now = 0;
    const std::vector<DeviceRates> speeds = rates(machine, n);
    constexpr int64_t kPast = 32;
    const StepLoad load{1, 1, kPast};
    const SessionGraphs graphs = session_graphs(dense_->architecture(), options().context);
    const auto run_s = [&](size_t d) {
      return [&, d](const Segment& segment, const StepShape&) {
        double s = 0;
        for (int32_t i : segment.nodes)
          s += node_seconds(
              node_work(*segment.graph, segment.graph->nodes[static_cast<size_t>(i)], load, graphs.kv),
              speeds[d]);
        return s;
      };
    };
    test::SimHost host(now, [&](const Segment& segment, const StepShape& shape, double) {
      return run_s(0)(segment, shape);
    });
    const test::SimOptions gpu{.times = {.bus_bytes_per_s = machine.bus, .run_s = run_s(1), .host_s = &now}};
    test::SimMachine devices(host, n, gpu);
    Session s(*dense_, devices.devices(), options(divided(std::vector<double>(n, 1))));
    s.append(prompt(static_cast<int>(kPast)), LogitsWanted::largest);
    const double before = now;
    decode_one(s);
    const Placement& placement = s.placement().placement;
    const PlacedGraph placed(graphs.decode, placement);
    const Schedule schedule = make_schedule(*placed, placement, n + 1);
    double compute = 0;
    for (const PlacedSegment& segment : schedule.partition.segments) {
      if (segment.device != DeviceId(GpuId(0)) || segment.collective) continue;
      compute += run_s(1)(Segment{&*placed, segment.nodes, {}, {}}, {});
    }
    const BusBytes& bus = s.placement().bytes.per_token;
    return {now - before, step_cost(*placed, schedule, devices.devices(), speeds, graphs.kv, load).seconds,
            compute, static_cast<double>(bus.collectives[1] + bus.logits) / machine.bus};
  }
};

TEST_F(TensorTime, IsPredictedAndThatOfComputeOrLinks) {
  for (const size_t n : {2, 4, 8}) {
    for (const Machine& machine : {Machine{1e9, 1e12}, Machine{1e11, 1e8}, Machine{1e10, 1e9}}) {
      SCOPED_TRACE(std::to_string(n) + " devices, " + std::to_string(machine.bus));
      const Seconds s = step(machine, n);
      EXPECT_NEAR(s.measured, s.predicted, 0.1 * s.predicted);
      const double longest = std::max(s.compute, s.link);
      EXPECT_GE(s.measured, 0.9 * longest);
      EXPECT_LE(s.measured, 1.1 * (s.compute + s.link));  // they take turns
      if (std::min(s.compute, s.link) < 0.05 * longest) {
        EXPECT_LE(s.measured, 1.1 * longest);
      }
    }
  }
}

}  // namespace
}  // namespace tandem
