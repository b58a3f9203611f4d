// Prompts in two halves over simulated devices (exec/halves.h): logits, memory and bytes are those of whole steps, a step
// takes as long as devices compute or links are busy and not both, and what fails beside the devices' runs is reported.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/runtime.h"
#include "exec/placed_graph.h"
#include "exec/tensor_cuts.h"
#include "plan/rates.h"
#include "support/recurrent_model.h"
#include "support/sim_host.h"
#include "support/tensor_rig.h"

namespace tandem {
namespace {

using testing::HasSubstr;

class HalvedSteps : public test::TensorRig {
 protected:
  static constexpr int64_t kUbatch = 48;  // halves of 32 and 16 tokens

  void SetUp() override {
    shape_.n_layer = 3;
    shape_.n_head = 8;
    shape_.n_head_kv = 4;
    dense_ = load("dense.gguf", shape_);
    test::TinyShape moe = shape_;
    moe.n_expert = 5;
    moe.n_expert_used = 2;
    moe_ = load("moe.gguf", moe);
  }

  static EngineOptions wide(const OffloadOptions& flags = {}, DType cache = DType::F32) {
    EngineOptions o = options(flags, cache);
    o.context.n_ubatch = kUbatch;
    o.context.n_ubatch_given = true;
    return o;
  }
  // Placed without the planner, every step with more tokens than a half in halves.
  static EngineOptions in_halves(const Model& model, const test::SimMachine& machine,
                                 const OffloadOptions& flags, bool with_host = false,
                                 EngineOptions o = wide()) {
    const SessionGraphs graphs = session_graphs(model.architecture(), o.context);
    o.placement = place(model.architecture(), model.weights(), machine.devices(), flags, *flags.n_gpu_layers);
    if (with_host) o.placement.parallel->devices.push_back(DeviceId::host());
    if (with_host) o.placement.parallel->shares.push_back(1);
    divide_caches(o.placement, graphs.decode);
    o.placement.parallel->halves_from = 1;
    return o;
  }

  // After prompts of 41, 48 + 33 and 2 tokens, which are steps in halves and whole ones, and decoded tokens.
  static std::vector<float> long_logits(Session& session) {
    std::vector<float> all;
    for (const int n : {41, 1, 81, 2, 1}) {
      const std::span<const float> row = session.append(prompt(n));
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }
  std::vector<float> expected(const Model& model) {
    Session alone(model, {host_.get()}, wide());
    return long_logits(alone);
  }

  void expect_same(const Model& model, const OffloadOptions& flags, size_t n_gpus, bool with_host = false) {
    SCOPED_TRACE(std::to_string(n_gpus) + " devices");
    test::SimMachine machine(*host_, n_gpus);
    Session session(model, machine.devices(), in_halves(model, machine, flags, with_host));
    EXPECT_LE(apart(long_logits(session), expected(model)), 1e-4f);
    EXPECT_GT(machine.n_side_copies(), 0);
    const int64_t before = machine.n_side_copies();
    expect_as_planned(session, machine);
    EXPECT_EQ(machine.n_side_copies(), before) << "a token alone";
  }

  test::TinyShape shape_;
};

TEST_F(HalvedSteps, LogitsAreThoseOfOneDevice) {
  for (const size_t n : {2, 3, 4}) {
    expect_same(*dense_, divided(std::vector<double>(n, 1)), n);
    expect_same(*moe_, divided(std::vector<double>(n, 1)), n);
  }
  for (const std::vector<double>& shares : {std::vector<double>{3, 1}, {1, 0, 2}, {1, 100}}) {
    expect_same(*dense_, divided(shares), shares.size());
    expect_same(*moe_, divided(shares), shares.size());
  }
}

TEST_F(HalvedSteps, OfRecurrentLayers) {
  for (const test::RecurrentKind kind : test::kRecurrentKinds) {
    SCOPED_TRACE(test::name_of(kind));
    const std::string path = directory_.path(test::name_of(kind));
    test::recurrent_model(kind).write(path);
    const auto model = Model::load(path);
    // Steps end at blocks of 32 tokens, to leave checkpoints there; or anywhere.
    for (const int64_t n_checkpoints : {8, 0}) {
      EngineOptions o = wide();
      o.context.n_state_checkpoints = n_checkpoints;
      if (n_checkpoints > 0) o.context.n_ubatch = 64;
      Session alone(*model, {host_.get()}, o);
      const std::vector<float> wanted = long_logits(alone);
      for (const size_t n : {2, 3}) {
        test::SimMachine machine(*host_, n);
        const OffloadOptions flags = divided(std::vector<double>(n, 1));
        Session session(*model, machine.devices(), in_halves(*model, machine, flags, false, o));
        EXPECT_LE(apart(long_logits(session), wanted), 1e-4f);
        EXPECT_GT(machine.n_side_copies(), 0);
        expect_as_planned(session, machine);
      }
    }
  }
}

TEST_F(HalvedSteps, WithWhatOneDeviceRunsForAll) {
  for (const Model* model : {dense_.get(), moe_.get()}) {
    OffloadOptions flags = divided({1, 1, 1});
    flags.kv_on_host = Toggle::on;
    expect_same(*model, flags, 3);
    flags = divided({2, 1});
    for (const int64_t n : {3, 4}) {
      flags.n_gpu_layers = n;
      expect_same(*model, flags, 2);
    }
    expect_same(*model, divided({1, 1}), 2, true);
  }
  OffloadOptions flags = divided({1, 1});
  flags.n_cpu_moe = 2;
  expect_same(*moe_, flags, 2);
}

// Matrices whose parts are no whole blocks are divided by rows, and their results joined between the sums.
TEST_F(HalvedSteps, OfQuantizedMatrices) {
  test::TinyShape shape = shape_;
  shape.dtype = DType::Q4_K;
  shape.n_embd = 256;
  shape.n_ff = 768;
  const auto model = load("quantized.gguf", shape);
  test::SimMachine machine(*host_, 3);
  Session session(*model, machine.devices(), in_halves(*model, machine, divided({1, 1, 1})));
  EXPECT_LE(apart(long_logits(session), expected(*model)), 2e-2f);
  EXPECT_GT(machine.n_side_copies(), 0);
  expect_as_planned(session, machine);
}

// With links so slow that whoever reads a sum too early reads something else.
TEST_F(HalvedSteps, SumsAreWaitedFor) {
  for (const Model* model : {dense_.get(), moe_.get()}) {
    test::SimMachine machine(*host_, 3, {.copy_bytes_per_s = 2e7});
    Session session(*model, machine.devices(), in_halves(*model, machine, divided({1, 1, 1})));
    EXPECT_LE(apart(long_logits(session), expected(*model)), 1e-4f);
    EXPECT_GT(machine.n_side_copies(), 0);
  }
}

// Steps of several texts: one of them may begin, end or go on where the halves meet.
TEST_F(HalvedSteps, OfSeveralSequences) {
  const std::string path = directory_.path("recurrent.gguf");
  test::recurrent_model(test::RecurrentKind::delta_tiled).write(path);
  const auto recurrent = Model::load(path);
  const auto rows = [](Runtime& runtime) {
    std::vector<std::vector<int32_t>> texts;
    for (int s = 0; s < 3; ++s) {
      texts.push_back(prompt(90 + s));
      for (int32_t& id : texts.back()) id = 3 + (id + 31 * s) % 290;
    }
    std::vector<std::unique_ptr<KvSequence>> sequences;
    for (int s = 0; s < 3; ++s)
      sequences.push_back(std::unique_ptr<KvSequence>(new KvSequence(runtime.new_sequence())));
    std::vector<float> all;
    for (const std::vector<size_t>& sizes : std::vector<std::vector<size_t>>{
             {10, 31, 7}, {32, 9, 1}, {31, 1, 1}, {1, 31, 16}, {1, 1, 46}, {5, 2, 1}, {0, 0, 17}}) {
      std::vector<BatchSlice> slices;
      for (size_t s = 0; s < sizes.size(); ++s) {
        const auto done = static_cast<size_t>(sequences[s]->length());
        if (sizes[s] > 0)
          slices.push_back({sequences[s].get(), std::span(texts[s]).subspan(done, sizes[s]), 1});
      }
      const auto logits = runtime.step(slices);
      EXPECT_TRUE(logits.has_value());
      all.insert(all.end(), logits->all().begin(), logits->all().end());
    }
    return all;
  };
  for (const Model* model : {dense_.get(), moe_.get(), recurrent.get()}) {
    EngineOptions o = wide();
    o.context.n_sequences = 3;
    o.context.n_ctx = 512;
    Runtime alone(*model, {host_.get()}, o);
    test::SimMachine machine(*host_, 2);
    const EngineOptions halved = in_halves(*model, machine, divided({1, 1}), false, o);
    Runtime runtime(*model, machine.devices(), halved);
    EXPECT_LE(apart(rows(runtime), rows(alone)), 1e-4f);
    EXPECT_GT(machine.n_side_copies(), 0);
  }
}

// The output head takes rows of both halves; what a step keeps of its tokens is in one piece.
TEST_F(HalvedSteps, LogitsOfEveryToken) {
  for (const bool keeps_hidden : {false, true}) {
    const auto rows = [&](Session& session) {
      std::vector<float> all;
      session.evaluate(prompt(93), [&](int64_t, int64_t, std::span<const float> logits) {
        all.insert(all.end(), logits.begin(), logits.end());
      });
      return all;
    };
    EngineOptions o = wide();
    o.context.all_logits = true;
    o.context.keeps_hidden = keeps_hidden;
    Session alone(*dense_, {host_.get()}, o);
    test::SimMachine machine(*host_, 2);
    const EngineOptions halved = in_halves(*dense_, machine, divided({1, 1}), false, o);
    Session session(*dense_, machine.devices(), halved);
    EXPECT_LE(apart(rows(session), rows(alone)), 1e-4f);
    EXPECT_GT(machine.n_side_copies(), 0);
  }
}

// Two sums a layer, but for the last one's, which are of the tokens whose logits are asked for: a part goes to the host and
// the sum back. So it is without halves.
TEST_F(HalvedSteps, BytesOverLinksFollowTheFormula) {
  for (const auto* model : {dense_.get(), moe_.get()}) {
    for (const size_t n : {2, 4}) {
      for (const bool halved : {false, true}) {
        test::SimMachine machine(*host_, n);
        EngineOptions o = in_halves(*model, machine, divided(std::vector<double>(n, 1)));
        if (!halved) o.placement.parallel->halves_from = 0;
        Session session(*model, machine.devices(), o);
        const uint64_t before = machine.copied_bytes();
        session.append(prompt(kUbatch), LogitsWanted::largest);
        const auto n_tokens = static_cast<uint64_t>(kUbatch), n_vocab = static_cast<uint64_t>(shape_.n_vocab);
        const uint64_t row = static_cast<uint64_t>(shape_.n_embd) * sizeof(float);
        const auto sums_of_tokens = static_cast<uint64_t>(2 * (shape_.n_layer - 1));
        const BusBytes& bus = session.placement().bytes.per_token;
        uint64_t bytes = n * 2 * row * (sums_of_tokens * n_tokens + 2);   // sums
        bytes += 2 * n_vocab * sizeof(float) + bus.logits;                // logits
        bytes += bus.activations * n_tokens;                              // the embedding, to each
        const uint64_t inputs = machine.copied_bytes() - before - bytes;  // positions, slots and so on
        EXPECT_EQ(inputs % n, 0u);
        EXPECT_LT(inputs, n * 5 * n_tokens * sizeof(int32_t));
        EXPECT_EQ(machine.n_side_copies(), halved ? static_cast<int64_t>(2 * 2 * sums_of_tokens * n) : 0);
      }
    }
  }
}

TEST_F(HalvedSteps, FailuresAreErrors) {
  expect_failures_are_errors(
      [&](const std::vector<Device*>& devices) {
        test::SimMachine like(*host_, 2);
        Session session(*dense_, devices, in_halves(*dense_, like, divided({1, 1})));
        long_logits(session);
      },
      7, 3);
}

// After a failure, steps go on as if it had not been.
TEST_F(HalvedSteps, AStepMayBeTriedAgain) {
  test::SimMachine like(*host_, 2);
  for (const int64_t fails : {30, 33, 36, 41}) {
    test::SimDevice first({.name = "SIM0"}), other({.name = "SIM1", .fail_copy = fails});
    Session session(*dense_, {host_.get(), &first, &other}, in_halves(*dense_, like, divided({1, 1})));
    std::optional<std::vector<float>> got;
    for (int i = 0; i < 2 && !got; ++i) {
      try {
        got = long_logits(session);
      } catch (const Error&) {
        session.truncate(0);
      }
    }
    ASSERT_TRUE(got.has_value());
    EXPECT_LE(apart(*got, expected(*dense_)), 1e-4f);
  }
}

TEST_F(HalvedSteps, ADeviceThatHangsIsNamed) {
  for (const int64_t hangs : {1, 2, 3, 4, 6}) {
    test::SimMachine like(*host_, 2);
    test::SimDevice first({.name = "SIM0"}), other({.name = "SIM1", .hang_run = hangs});
    EngineOptions o = in_halves(*dense_, like, divided({1, 1}));
    o.make_collectives = [](const auto&) { return make_host_collectives(0.5); };
    Session session(*dense_, {host_.get(), &first, &other}, o);
    for (int i = 0; i < 2; ++i) {
      try {
        session.append(prompt(40));
        ADD_FAILURE() << "no error";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::io);
        EXPECT_THAT(e.what(),
                    HasSubstr(i == 0 ? "SIM1 has not answered within 0.5 s" : "has not answered before"));
      }
    }
    other.release();
    for (test::SimDevice* device : {&first, &other}) {
      device->wait(device->record());  // before its buffers go
      device->side_queue()->wait(device->side_queue()->record());
    }
  }
}

// ---- As the planner chooses ----

TEST_F(HalvedSteps, AreChosenWhereTheyAreFaster) {
  const auto from = [&](double bus, double peer, int64_t n_ubatch, double read = 1e13) {
    EngineOptions o = wide(divided({1, 1}));
    o.context.n_ubatch = n_ubatch;
    o.rates = rates_for_halves(2);
    for (size_t d = 1; d < 3; ++d) {
      o.rates[d].bus_bytes_per_s = bus;
      o.rates[d].peer_bytes_per_s = peer;
      o.rates[d].read_bytes_per_s = read;
    }
    test::SimMachine machine(*host_, 2);
    std::string text;
    const Session session(*dense_, machine.devices(), o, [&](const std::string& t) { text = t; });
    const int64_t n = halves_from(session);
    const std::string line = "prompts: steps of " + std::to_string(n) + " tokens or more in two halves";
    if (n > 0) {
      EXPECT_THAT(text, HasSubstr(line));
    } else {
      EXPECT_THAT(text, testing::Not(HasSubstr("in two halves")));
    }
    return n;
  };
  EXPECT_GT(from(1e7, 0, 48), 32);
  EXPECT_LE(from(1e7, 0, 48), 48);
  EXPECT_EQ(from(1e14, 0, 48), 0);    // there is nothing to hide
  EXPECT_EQ(from(1e7, 1e14, 48), 0);  // over links of GPUs
  EXPECT_GT(from(1e14, 1e7, 48), 32);
  EXPECT_EQ(from(1e7, 0, 16), 0);        // too few tokens
  EXPECT_EQ(from(1e12, 0, 48, 1e6), 0);  // weights take long to read, and would be read twice
}

// ---- In simulated time ----

struct Machine {
  double ops, bus;  // per second, of each GPU
};

class HalvedTime : public HalvedSteps {
 protected:
  struct Seconds {
    double measured, predicted, compute, link;
  };

  void SetUp() override {
    test::TinyShape shape;
    shape.n_layer = 8;
    shape.n_embd = 256;
    shape.n_head = 8;
    shape.n_head_kv = 8;
    shape.n_ff = 384;  // as much to compute as attention has
    shape.n_vocab = 300;
    dense_ = load("dense.gguf", shape);
  }

  Seconds step(const Machine& machine, size_t n, bool halved, int n_tokens) {
    double now = 0;
    std::vector<DeviceRates> speeds{{1e15, 1e18, 1e15, 0, 0}};
    speeds.resize(n + 1, DeviceRates{1e15, machine.ops, machine.bus, 0, 0});
    constexpr int64_t kTokens = 256;
    EngineOptions o = wide();
    o.context.n_ubatch = kTokens;
    o.context.n_ctx = 1024;
    const SessionGraphs graphs = session_graphs(dense_->architecture(), o.context);
    const auto load_of = [](const StepShape& shape) {
      return StepLoad{shape.n_tokens, shape.n_outputs, shape.sequences.front().n_past};
    };
    const auto run_s = [&](size_t d) {
      return [&, d](const Segment& segment, const StepShape& shape) {
        double s = 0;
        for (const int32_t i : segment.nodes) {
          const Node& node = segment.graph->nodes[static_cast<size_t>(i)];
          s += node_seconds(node_work(*segment.graph, node, load_of(shape), graphs.kv), speeds[d]);
        }
        return s;
      };
    };
    double compute = 0;  // of the first GPU
    test::SimHost host(now, [&](const Segment& segment, const StepShape& shape, double) {
      return run_s(0)(segment, shape);
    });
    const auto gpu_s = [&](const Segment& segment, const StepShape& shape) {
      const double s = run_s(1)(segment, shape);
      compute += s / static_cast<double>(n);  // all are alike
      return s;
    };
    const test::SimOptions gpu{.times = {.bus_bytes_per_s = machine.bus, .run_s = gpu_s, .host_s = &now}};
    test::SimMachine devices(host, n, gpu);
    const OffloadOptions flags = divided(std::vector<double>(n, 1));
    EngineOptions placed = in_halves(*dense_, devices, flags, false, o);
    if (!halved) placed.placement.parallel->halves_from = 0;
    Session s(*dense_, devices.devices(), placed);
    s.append(prompt(static_cast<int>(kTokens)), LogitsWanted::largest);
    const double before = now;
    const uint64_t copied = devices.gpu(0).copied_bytes();
    compute = 0;
    s.append(prompt(n_tokens), LogitsWanted::largest);
    const double measured = now - before;
    const auto link = static_cast<double>(devices.gpu(0).copied_bytes() - copied) / machine.bus;
    return {measured, predicted(s.placement().placement, graphs, devices.devices(), speeds, n_tokens),
            compute, link};
  }

  static double predicted(const Placement& placement, const SessionGraphs& graphs,
                          const std::vector<Device*>& devices, std::span<const DeviceRates> speeds,
                          int64_t n_tokens) {
    PlacedGraph graph(graphs.prefill, placement);
    if (goes_in_halves(placement, graphs.prefill.shape.max_tokens, n_tokens))
      graph = PlacedGraph(halved_graph(*graph, placement).value());
    const Schedule schedule = make_schedule(*graph, placement, devices.size(), Arenas::none, graph.halves());
    const StepLoad load{n_tokens, 1, 256};
    return step_cost(*graph, schedule, devices, speeds, graphs.kv, load).seconds;
  }
};

// Of a step of 256 tokens: as long as devices compute or as links are busy, the longer of both, where one is clearly longer.
// Where they are alike, the first piece and the last sum count too: 1.15 of the longer one at most.
// Whole steps take both.
TEST_F(HalvedTime, IsThatOfComputeOrLinks) {
  for (const size_t n : {2, 4}) {
    const double all = static_cast<double>(n);
    for (const Machine& machine : {Machine{1e11 / all, 1e9}, Machine{4e11 / all, 1e9},
                                   Machine{1e12 / all, 1e9}, Machine{4e12 / all, 1e9}}) {
      const Seconds whole = step(machine, n, false, 256), halved = step(machine, n, true, 256);
      const double longest = std::max(halved.compute, halved.link),
                   other = std::min(halved.compute, halved.link);
      SCOPED_TRACE(format("{} devices: compute {:.4f} s, links {:.4f} s, whole {:.4f} s, in halves {:.4f} s",
                          n, halved.compute, halved.link, whole.measured, halved.measured));
      RecordProperty(format("of_longest_{}_{:g}", n, machine.ops),
                     format("{:.3f}", halved.measured / longest));
      EXPECT_NEAR(halved.measured, halved.predicted, 0.02 * halved.predicted);
      EXPECT_NEAR(whole.measured, whole.predicted, 0.02 * whole.predicted);
      EXPECT_GE(halved.measured, 0.98 * longest);
      EXPECT_LE(halved.measured, (other < 0.7 * longest ? 1.1 : 1.15) * longest);
      EXPECT_GE(whole.measured, 0.95 * (whole.compute + whole.link));
    }
  }
}

// Fewer tokens than a micro-batch: the second half is shorter, and hides less.
TEST_F(HalvedTime, OfFewerTokensIsPredicted) {
  for (const int n_tokens : {130, 180, 250}) {
    SCOPED_TRACE(n_tokens);
    const Machine machine{4e11, 1e9};
    const Seconds whole = step(machine, 2, false, n_tokens), halved = step(machine, 2, true, n_tokens);
    EXPECT_NEAR(halved.measured, halved.predicted, 0.02 * halved.predicted);
    EXPECT_LT(halved.measured, whole.measured);
  }
}

}  // namespace
}  // namespace tandem
