// Prompts in parts over simulated devices (exec/parts.h): logits, memory and bytes are those of whole steps, a step takes as
// long as devices compute or links are busy and not both, and what fails beside the devices' runs is reported.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "cpu/isa.h"
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

class PartedSteps : public test::TensorRig {
 protected:
  static constexpr int64_t kCounts[] = {2, 3, 4};  // of parts

  // Two parts of 32 and 16 tokens, or more parts of 16.
  static int64_t ubatch_for(int64_t n_parts) { return std::max<int64_t>(48, 16 * n_parts); }

  void SetUp() override { load_divisible(); }

  static EngineOptions wide(const OffloadOptions& flags = {}, int64_t n_ubatch = 48) {
    EngineOptions o = options(flags, DType::F32);
    o.context.n_ubatch = n_ubatch;
    o.context.n_ubatch_given = true;
    return o;
  }
  // Placed without the planner, every step with more tokens than a part in parts.
  static EngineOptions in_parts(const Model& model, const test::SimMachine& machine,
                                const OffloadOptions& flags, int64_t n_parts, bool with_host,
                                EngineOptions o) {
    const SessionGraphs graphs = session_graphs(model.architecture(), o.context);
    o.placement = place(model.architecture(), model.weights(), machine.devices(), flags, *flags.n_gpu_layers);
    if (with_host) o.placement.parallel->devices.push_back(DeviceId::host());
    if (with_host) o.placement.parallel->shares.push_back(1);
    divide_caches(o.placement, graphs.decode);
    o.placement.parallel->parts = {n_parts, 1};
    return o;
  }
  static EngineOptions in_parts(const Model& model, const test::SimMachine& machine,
                                const OffloadOptions& flags, int64_t n_parts = 2, bool with_host = false) {
    return in_parts(model, machine, flags, n_parts, with_host, wide({}, ubatch_for(n_parts)));
  }

  // After prompts that are steps in parts, some of which may be empty, and whole ones, and decoded tokens.
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
    const std::vector<float> wanted = expected(model);
    for (const int64_t n_parts : kCounts) {
      SCOPED_TRACE(format("{} devices, {} parts", n_gpus, n_parts));
      test::SimMachine machine(*host_, n_gpus);
      Session session(model, machine.devices(), in_parts(model, machine, flags, n_parts, with_host));
      EXPECT_LE(apart(long_logits(session), wanted), 1e-4f);
      EXPECT_GT(machine.n_side_copies(), 0);
      const int64_t before = machine.n_side_copies();
      expect_as_planned(session, machine);
      EXPECT_EQ(machine.n_side_copies(), before) << "a token alone";
    }
  }
};

TEST_F(PartedSteps, LogitsAreThoseOfOneDevice) {
  for (const size_t n : {2, 3, 4}) {
    expect_same(*dense_, divided(std::vector<double>(n, 1)), n);
    expect_same(*moe_, divided(std::vector<double>(n, 1)), n);
  }
  for (const std::vector<double>& shares : {std::vector<double>{3, 1}, {1, 0, 2}, {1, 100}}) {
    expect_same(*dense_, divided(shares), shares.size());
    expect_same(*moe_, divided(shares), shares.size());
  }
}

TEST_F(PartedSteps, OfRecurrentLayers) {
  for (const test::RecurrentKind kind : test::kRecurrentKinds) {
    SCOPED_TRACE(test::name_of(kind));
    const std::string path = directory_.path(test::name_of(kind));
    test::recurrent_model(kind).write(path);
    const auto model = Model::load(path);
    // Steps end at blocks of 32 tokens, to leave checkpoints there; or anywhere.
    for (const auto& [n_parts, n_checkpoints] :
         {std::pair(2, 8), std::pair(2, 0), std::pair(3, 0), std::pair(4, 8), std::pair(4, 0)}) {
      EngineOptions o = wide({}, n_checkpoints > 0 ? 64 : ubatch_for(n_parts));
      o.context.n_state_checkpoints = n_checkpoints;
      Session alone(*model, {host_.get()}, o);
      const std::vector<float> wanted = long_logits(alone);
      for (const size_t n : {2, 3}) {
        SCOPED_TRACE(format("{} devices, {} parts", n, n_parts));
        test::SimMachine machine(*host_, n);
        const OffloadOptions flags = divided(std::vector<double>(n, 1));
        Session session(*model, machine.devices(), in_parts(*model, machine, flags, n_parts, false, o));
        EXPECT_LE(apart(long_logits(session), wanted), 1e-4f);
        EXPECT_GT(machine.n_side_copies(), 0);
        expect_as_planned(session, machine);
      }
    }
  }
}

TEST_F(PartedSteps, WithWhatOneDeviceRunsForAll) {
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
TEST_F(PartedSteps, OfQuantizedMatrices) {
  test::TinyShape shape = shape_;
  shape.dtype = DType::Q4_K;
  shape.n_embd = 256;
  shape.n_ff = 768;
  const auto model = load("quantized.gguf", shape);
  const std::vector<float> wanted = expected(*model);
  // AMX multiplies many tokens as bf16, and few as 8 bits.
  const float tolerance = cpu::best_isa() == cpu::Isa::avx512_amx ? 6e-2f : 2e-2f;
  for (const int64_t n_parts : kCounts) {
    test::SimMachine machine(*host_, 3);
    Session session(*model, machine.devices(), in_parts(*model, machine, divided({1, 1, 1}), n_parts));
    EXPECT_LE(apart(long_logits(session), wanted), tolerance);
    EXPECT_GT(machine.n_side_copies(), 0);
    expect_as_planned(session, machine);
  }
}

TEST_F(PartedSteps, OfQuantizedCaches) {
  test::TinyShape shape = shape_;
  shape.n_embd = 256;  // heads of 32
  const auto model = load("wide.gguf", shape);
  for (const DType cache : {DType::Q8_0, DType::Q4_0}) {
    for (const int64_t n_parts : kCounts) {
      EngineOptions o = wide({}, ubatch_for(n_parts));
      o.context.k_dtype = o.context.v_dtype = cache;
      Session alone(*model, {host_.get()}, o);
      test::SimMachine machine(*host_, 2);
      Session session(*model, machine.devices(),
                      in_parts(*model, machine, divided({1, 1}), n_parts, false, o));
      EXPECT_LE(apart(long_logits(session), long_logits(alone)), 1e-2f);
      EXPECT_GT(machine.n_side_copies(), 0);
      expect_as_planned(session, machine);
    }
  }
}

// With links so slow that whoever reads a sum too early reads something else.
TEST_F(PartedSteps, SumsAreWaitedFor) {
  for (const Model* model : {dense_.get(), moe_.get()}) {
    const std::vector<float> wanted = expected(*model);
    for (const int64_t n_parts : {2, 3, 4, 8}) {
      test::SimMachine machine(*host_, 3, {.copy_bytes_per_s = 2e7});
      Session session(*model, machine.devices(), in_parts(*model, machine, divided({1, 1, 1}), n_parts));
      EXPECT_LE(apart(long_logits(session), wanted), 1e-4f);
      EXPECT_GT(machine.n_side_copies(), 0);
    }
  }
}

// Steps of several texts: one of them may begin, end or go on where parts meet, or lie across several.
TEST_F(PartedSteps, OfSeveralSequences) {
  const std::string path = directory_.path("recurrent.gguf");
  test::recurrent_model(test::RecurrentKind::delta_tiled).write(path);
  const auto recurrent = Model::load(path);
  const auto rows = [](Runtime& runtime) {
    std::vector<std::vector<int32_t>> texts;
    for (int s = 0; s < 3; ++s) {
      texts.push_back(prompt(130 + s));
      for (int32_t& id : texts.back()) id = 3 + (id + 31 * s) % 290;
    }
    std::vector<std::unique_ptr<KvSequence>> sequences;
    for (int s = 0; s < 3; ++s)
      sequences.push_back(std::unique_ptr<KvSequence>(new KvSequence(runtime.new_sequence())));
    std::vector<float> all;
    for (const std::vector<size_t>& sizes : std::vector<std::vector<size_t>>{{10, 31, 7},
                                                                             {32, 9, 1},
                                                                             {31, 1, 1},
                                                                             {1, 31, 16},
                                                                             {1, 1, 46},
                                                                             {5, 2, 1},
                                                                             {0, 0, 17},
                                                                             {4, 40, 2}}) {
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
    for (const int64_t n_parts : kCounts) {
      EngineOptions o = wide({}, ubatch_for(n_parts));
      o.context.n_sequences = 3;
      o.context.n_ctx = 512;
      Runtime alone(*model, {host_.get()}, o);
      test::SimMachine machine(*host_, 2);
      const EngineOptions parted = in_parts(*model, machine, divided({1, 1}), n_parts, false, o);
      Runtime runtime(*model, machine.devices(), parted);
      EXPECT_LE(apart(rows(runtime), rows(alone)), 1e-4f);
      EXPECT_GT(machine.n_side_copies(), 0);
    }
  }
}

// The output head takes rows of all parts; what a step keeps of its tokens is in one piece.
TEST_F(PartedSteps, LogitsOfEveryToken) {
  for (const bool keeps_hidden : {false, true}) {
    const auto rows = [&](Session& session) {
      std::vector<float> all;
      session.evaluate(prompt(93), [&](int64_t, int64_t, std::span<const float> logits) {
        all.insert(all.end(), logits.begin(), logits.end());
      });
      return all;
    };
    for (const int64_t n_parts : kCounts) {
      EngineOptions o = wide({}, ubatch_for(n_parts));
      o.context.all_logits = true;
      o.context.keeps_hidden = keeps_hidden;
      Session alone(*dense_, {host_.get()}, o);
      test::SimMachine machine(*host_, 2);
      const EngineOptions parted = in_parts(*dense_, machine, divided({1, 1}), n_parts, false, o);
      Session session(*dense_, machine.devices(), parted);
      EXPECT_LE(apart(rows(session), rows(alone)), 1e-4f);
      EXPECT_GT(machine.n_side_copies(), 0);
    }
  }
}

// Two sums a layer, but for the last one's, which are of the tokens whose logits are asked for: a part goes to the host and
// the sum back. So it is without parts.
TEST_F(PartedSteps, BytesOverLinksFollowTheFormula) {
  for (const auto* model : {dense_.get(), moe_.get()}) {
    for (const size_t n : {2, 4}) {
      for (const int64_t n_parts : {0, 2, 3, 4}) {
        test::SimMachine machine(*host_, n);
        const OffloadOptions flags = divided(std::vector<double>(n, 1));
        Session session(*model, machine.devices(), in_parts(*model, machine, flags, n_parts));
        const int64_t n_step = ubatch_for(n_parts);
        const uint64_t before = machine.copied_bytes();
        session.append(prompt(static_cast<int>(n_step)), LogitsWanted::largest);
        const auto n_tokens = static_cast<uint64_t>(n_step), n_vocab = static_cast<uint64_t>(shape_.n_vocab);
        const uint64_t row = static_cast<uint64_t>(shape_.n_embd) * sizeof(float);
        const auto sums_of_tokens = static_cast<uint64_t>(2 * (shape_.n_layer - 1));
        const BusBytes& bus = session.placement().bytes.per_token;
        uint64_t bytes = n * 2 * row * (sums_of_tokens * n_tokens + 2);   // sums
        bytes += 2 * n_vocab * sizeof(float) + bus.logits;                // logits
        bytes += bus.activations * n_tokens;                              // the embedding, to each
        const uint64_t inputs = machine.copied_bytes() - before - bytes;  // positions, slots and so on
        EXPECT_EQ(inputs % n, 0u);
        EXPECT_LT(inputs, n * 5 * n_tokens * sizeof(int32_t));
        EXPECT_EQ(machine.n_side_copies(), n_parts * static_cast<int64_t>(2 * sums_of_tokens * n));
      }
    }
  }
}

TEST_F(PartedSteps, FailuresAreErrors) {
  for (const int64_t n_parts : {2, 4}) {
    expect_failures_are_errors(
        [&](const std::vector<Device*>& devices) {
          test::SimMachine like(*host_, 2);
          Session session(*dense_, devices, in_parts(*dense_, like, divided({1, 1}), n_parts));
          long_logits(session);
        },
        7 * n_parts, 3 * n_parts);
  }
}

// After a failure, steps go on as if it had not been.
TEST_F(PartedSteps, AStepMayBeTriedAgain) {
  test::SimMachine like(*host_, 2);
  for (const int64_t n_parts : kCounts) {
    for (const int64_t fails : {30, 33, 36, 41, 44, 45}) {
      test::SimDevice first({.name = "SIM0"}), other({.name = "SIM1", .fail_copy = fails});
      Session session(*dense_, {host_.get(), &first, &other},
                      in_parts(*dense_, like, divided({1, 1}), n_parts));
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
}

TEST_F(PartedSteps, ADeviceThatHangsIsNamed) {
  for (const auto& [n_parts, hangs] :
       {std::pair(2, 1), std::pair(2, 2), std::pair(2, 3), std::pair(2, 4), std::pair(2, 6), std::pair(3, 2),
        std::pair(3, 5), std::pair(4, 1), std::pair(4, 3), std::pair(4, 6), std::pair(4, 9)}) {
    SCOPED_TRACE(format("{} parts, run {}", n_parts, hangs));
    test::SimMachine like(*host_, 2);
    test::SimDevice first({.name = "SIM0"}), other({.name = "SIM1", .hang_run = hangs});
    EngineOptions o = in_parts(*dense_, like, divided({1, 1}), n_parts);
    o.make_collectives = [](const auto&) { return make_host_collectives(0.5); };
    Session session(*dense_, {host_.get(), &first, &other}, o);
    for (int i = 0; i < 2; ++i) {
      try {
        session.append(prompt(static_cast<int>(ubatch_for(n_parts)) - 5));
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

TEST_F(PartedSteps, AreChosenWhereTheyAreFaster) {
  const auto from = [&](double bus, double peer, int64_t n_ubatch, double read = 1e13) {
    EngineOptions o = wide(divided({1, 1}), n_ubatch);
    o.rates = rates_for_parts(2);
    for (size_t d = 1; d < 3; ++d) {
      o.rates[d].bus_bytes_per_s = bus;
      o.rates[d].peer_bytes_per_s = peer;
      o.rates[d].read_bytes_per_s = read;
    }
    test::SimMachine machine(*host_, 2);
    std::string text;
    const Session session(*dense_, machine.devices(), o, [&](const std::string& t) { text = t; });
    const PrefillParts parts = parts_of(session);
    if (parts.count > 0) {
      EXPECT_GT(parts.from, tokens_of_part(n_ubatch, parts.count));
      EXPECT_THAT(text, HasSubstr(format("prompts: steps of {} tokens or more in {} parts", parts.from,
                                         parts.count)));
    } else {
      EXPECT_EQ(parts.from, 0);
      EXPECT_THAT(text, testing::Not(HasSubstr("prompts: steps of")));
    }
    return parts.from;
  };
  EXPECT_GT(from(1e7, 0, 48), 0);
  EXPECT_LE(from(1e7, 0, 48), 48);
  EXPECT_EQ(from(1e14, 0, 48), 0);    // there is nothing to hide
  EXPECT_EQ(from(1e7, 1e14, 48), 0);  // over links of GPUs
  EXPECT_GT(from(1e14, 1e7, 48), 0);
  EXPECT_EQ(from(1e7, 0, 16), 0);        // too few tokens
  EXPECT_EQ(from(1e12, 0, 48, 1e6), 0);  // weights take long to read, and each part would read them
}

// ---- In simulated time ----

struct Machine {
  double ops, bus;  // per second, of each GPU
};

class PartedTime : public PartedSteps {
 protected:
  std::unique_ptr<Model> wide_;

  struct Seconds {
    double measured, predicted, compute, link;
    int64_t n_parts;
    double longest() const { return std::max(compute, link); }
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
    shape.n_ff = 1664;  // about as in Llama 3.1 70B
    wide_ = load("wide.gguf", shape);
  }

  // A step behind 256 tokens; in as many parts as the planner chooses if n_parts is less than 0.
  Seconds step(const Model& model, const Machine& machine, size_t n, int64_t n_parts, int n_tokens) {
    double now = 0;
    std::vector<DeviceRates> speeds{{1e15, 1e18, 1e15, 0, 0}};
    speeds.resize(n + 1, DeviceRates{1e15, machine.ops, machine.bus, 0, 0});
    constexpr int64_t kTokens = 256;
    EngineOptions o = wide();
    o.context.n_ubatch = kTokens;
    o.context.n_ctx = 1024;
    const SessionGraphs graphs = session_graphs(model.architecture(), o.context);
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
    o.offload = flags;
    o.rates = speeds;
    if (n_parts >= 0) o = in_parts(model, devices, flags, n_parts, false, o);
    Session s(model, devices.devices(), o);
    s.append(prompt(static_cast<int>(kTokens)), LogitsWanted::largest);
    const double before = now;
    const uint64_t copied = devices.gpu(0).copied_bytes();
    compute = 0;
    s.append(prompt(n_tokens), LogitsWanted::largest);
    const double measured = now - before;
    const auto link = static_cast<double>(devices.gpu(0).copied_bytes() - copied) / machine.bus;
    return {measured, predicted(s.placement().placement, graphs, devices.devices(), speeds, n_tokens),
            compute, link, parts_of(s).count};
  }

  static double predicted(const Placement& placement, const SessionGraphs& graphs,
                          const std::vector<Device*>& devices, std::span<const DeviceRates> speeds,
                          int64_t n_tokens) {
    PlacedGraph graph(graphs.prefill, placement);
    if (goes_in_parts(placement, graphs.prefill.shape.max_tokens, n_tokens))
      graph = PlacedGraph(parted_graph(*graph, placement).value());
    const Schedule schedule = make_schedule(*graph, placement, devices.size(), Arenas::none, graph.parts());
    const StepLoad load{n_tokens, 1, 256};
    return step_cost(*graph, schedule, devices, speeds, graphs.kv, load).seconds;
  }
};

// Of a step of 256 tokens, in as many parts as the planner chooses: as long as devices compute or as links are busy, the longer
// of both, also where they are alike. Whole steps take both.
TEST_F(PartedTime, IsThatOfComputeOrLinks) {
  for (const Model* model : {dense_.get(), wide_.get()}) {
    const double work = model == wide_.get() ? 2.5 : 1;  // of a layer
    for (const size_t n : {2, 4}) {
      for (const double ops : {1e11, 2e11, 3e11, 4e11, 6e11, 1e12, 4e12}) {
        const Machine machine{ops * work / static_cast<double>(n), 1e9};
        const Seconds whole = step(*model, machine, n, 0, 256), parted = step(*model, machine, n, -1, 256);
        SCOPED_TRACE(format("{} devices: compute {:.4f} s, links {:.4f} s, whole {:.4f} s, {} parts {:.4f} s",
                            n, parted.compute, parted.link, whole.measured, parted.n_parts, parted.measured));
        RecordProperty(format("of_longest_{}_{}_{:g}", model == wide_.get() ? "wide" : "dense", n, ops),
                       format("{:.3f} in {} parts", parted.measured / parted.longest(), parted.n_parts));
        EXPECT_NEAR(parted.measured, parted.predicted, 0.02 * parted.predicted);
        EXPECT_NEAR(whole.measured, whole.predicted, 0.02 * whole.predicted);
        EXPECT_GE(parted.measured, 0.98 * parted.longest());
        EXPECT_LE(parted.measured, 1.1 * parted.longest());
        EXPECT_GE(whole.measured, 0.95 * (whole.compute + whole.link));
      }
    }
  }
}

// Attention computes less than the feed-forward part, and two parts leave devices or links idle in turns.
TEST_F(PartedTime, TwoPartsHideLessWhereBothAreAlike) {
  double most = 0;
  for (const double ops : {6e11, 7e11, 8e11, 1e12}) {
    const Machine machine{ops / 2, 1e9};
    const Seconds two = step(*wide_, machine, 2, 2, 256), chosen = step(*wide_, machine, 2, -1, 256);
    EXPECT_NEAR(two.measured, two.predicted, 0.02 * two.predicted);
    EXPECT_LE(chosen.measured, two.measured);
    EXPECT_GT(chosen.n_parts, 2);
    most = std::max(most, two.measured / two.longest());
  }
  RecordProperty("of_longest_in_two_parts", format("{:.3f}", most));
  EXPECT_GT(most, 1.2);
}

// Any number of parts, and fewer tokens than a micro-batch, which leave the last part shorter or some empty.
TEST_F(PartedTime, OfFewerTokensIsPredicted) {
  for (const Model* model : {dense_.get(), wide_.get()}) {
    for (const int n_tokens : {130, 180, 250}) {
      const Machine machine{4e11, 1e9};
      const Seconds whole = step(*model, machine, 2, 0, n_tokens);
      for (const int64_t n_parts : {2, 3, 4, 6, 8}) {
        SCOPED_TRACE(format("{} tokens in {} parts", n_tokens, n_parts));
        const Seconds parted = step(*model, machine, 2, n_parts, n_tokens);
        EXPECT_NEAR(parted.measured, parted.predicted, 0.02 * parted.predicted);
        EXPECT_LT(parted.measured, whole.measured);
      }
    }
  }
}

}  // namespace
}  // namespace tandem
