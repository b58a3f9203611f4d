// Experts that a GPU keeps beside the host: with slots for any number of experts, whatever is computed on which side and
// brought when, logits are those of the CPU, for single tokens, batches and guesses, and after failures. The simulated
// device ends the test when a slot is overwritten that a run may still read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/log.h"
#include "exec/expert_cache.h"
#include "exec/placed_graph.h"
#include "plan/fit.h"
#include "plan/session_plan.h"
#include "support/batch_rig.h"
#include "support/metered_host.h"

namespace tandem {
namespace {

using testing::HasSubstr;

class ExpertsOnBoth : public test::BatchRig {
 protected:
  static constexpr int64_t kLayers = 5, kExperts = 12, kUsed = 3;

  void SetUp() override {
    test::TinyShape shape;
    shape.n_layer = kLayers;
    shape.n_expert = kExperts;
    shape.n_expert_used = kUsed;
    model_ = load("model.gguf", shape);
    expected_ = cpu_logits(*model_, exact());
  }
  static EngineOptions exact() {
    EngineOptions o = SplitRig::options({}, DType::F32);
    o.context.n_ctx = 256;
    return o;
  }
  // All layers on the GPU, the experts of the first n_cpu_moe on the host.
  static OffloadChoice choice(int64_t n_slots, double fetched, int64_t n_cpu_moe = kLayers, double kept = 1) {
    return {.n_gpu_layers = kLayers + 1,
            .n_cpu_moe = n_cpu_moe,
            .n_cached_experts = n_slots,
            .fetched_experts = fetched,
            .kept_experts = kept};
  }
  EngineOptions placed(const std::vector<Device*>& devices, const OffloadChoice& choice,
                       EngineOptions o = exact()) {
    o.placement = place(model_->architecture(), model_->weights(), devices, {}, choice);
    return o;
  }
  std::unique_ptr<Session> session(const std::vector<Device*>& devices, const OffloadChoice& choice,
                                   const EngineOptions& o = exact()) {
    return std::make_unique<Session>(*model_, devices, placed(devices, choice, o));
  }
  // The sums are added in another order.
  void expect_near(std::span<const float> got, std::span<const float> expected) {
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 2e-5f) << i;
  }
  static const ExpertCacheCounts& counts(const Session& s) { return s.executor().expert_cache().counts(); }

  std::unique_ptr<Model> model_;
  std::vector<float> expected_;
};

TEST_F(ExpertsOnBoth, TheSameLogitsWithAnySlots) {
  for (const Streaming streaming : {Streaming::none, Streaming::prefill}) {
    for (const int64_t n_slots : {1, 2, 5, 11, 50}) {
      for (const double fetched : {0.0, 0.4, 1.0}) {
        for (const int64_t n_cpu_moe : {2, 5}) {
          SCOPED_TRACE(format("{}, {} slots, {} fetched, {} layers", streaming_name(streaming), n_slots,
                              fetched, n_cpu_moe));
          test::MeteredHost host;
          test::SimDevice sim({.copy_bytes_per_s = 1e9});
          OffloadChoice c = choice(n_slots, fetched, n_cpu_moe);
          c.streaming = streaming;
          const auto s = session({&host, &sim}, c);
          expect_near(logits(*s), expected_);
          s->truncate(0);
          expect_near(logits(*s), expected_);  // with what the slots have now
          const Footprint& bytes = s->placement().bytes;
          EXPECT_EQ(sim.used_bytes(), bytes.devices[1].total());
          EXPECT_EQ(host.used_bytes(), bytes.devices[0].total() - bytes.devices[0].scratch);
          // Three decoded tokens, twice.
          EXPECT_EQ(counts(*s).n_used, static_cast<uint64_t>(2 * 3 * n_cpu_moe * kUsed));
          EXPECT_GT(counts(*s).n_found, 0u);
        }
      }
    }
  }
}

// Whatever is chosen and not there is brought for the step, all of it, or nothing.
TEST_F(ExpertsOnBoth, TheHostComputesWhatIsNotBrought) {
  constexpr uint64_t kExpertBytes = 3 * 64 * 96 * sizeof(float);
  for (const double fetched : {0.0, 0.5, 1.0}) {
    test::SimDevice sim({});
    const auto s = session({host_.get(), &sim}, choice(6, fetched));
    const uint64_t before = sim.fetched_bytes();
    for (int i = 0; i < 20; ++i) decode_one(*s), decode_one(*s);
    const ExpertCacheCounts& c = counts(*s);
    EXPECT_EQ(c.n_used, static_cast<uint64_t>(40 * kLayers * kUsed));
    EXPECT_EQ(c.fetched_bytes, (c.n_fetched + c.n_kept) * kExpertBytes);
    EXPECT_EQ(sim.fetched_bytes() - before, c.fetched_bytes);
    const uint64_t n_missing = c.n_used - c.n_found;
    if (fetched == 0) {
      EXPECT_EQ(c.n_fetched, 0u);
      EXPECT_GT(c.n_kept, 0u);
    } else if (fetched == 1) {
      EXPECT_LE(c.n_fetched, n_missing);  // the policy keeps what is used more
      EXPECT_GT(c.n_fetched, 0u);
    }
    // Of nearly the same tokens again and again, most experts are there in the end.
    EXPECT_GT(c.n_found, c.n_used / 2);
  }
}

TEST_F(ExpertsOnBoth, BatchesOfOneToSixteenSequences) {
  for (const int64_t n_sequences : {1, 2, 5, 16}) {
    const std::vector<BatchRequest> list = requests(static_cast<int>(n_sequences) + 4);
    const std::vector<std::string> expected = alone(*model_, list);
    for (const int64_t n_slots : {1, 4, 11}) {
      for (const double fetched : {0.0, 0.6}) {
        SCOPED_TRACE(format("{} sequences, {} slots, {} fetched", n_sequences, n_slots, fetched));
        test::SimDevice sim({});
        const std::vector<Device*> devices{host_.get(), &sim};
        Runtime runtime(*model_, devices,
                        placed(devices, choice(n_slots, fetched), BatchRig::options(n_sequences)));
        Batcher batcher(runtime);
        EXPECT_EQ(together(batcher, list), expected);
      }
    }
  }
}

TEST_F(ExpertsOnBoth, StepsThatCheckGuesses) {
  EngineOptions o = exact();
  o.context.n_draft = 5;
  Session whole(*model_, {host_.get()}, o);
  const std::vector<float> expected = guessed_logits(whole);
  for (const int64_t n_slots : {1, 4, 11}) {
    test::SimDevice sim({});
    const auto s = session({host_.get(), &sim}, choice(n_slots, 0.5), o);
    expect_near(guessed_logits(*s), expected);
  }
}

// A policy decides what is where, not what comes out.
TEST_F(ExpertsOnBoth, EveryPolicyGivesTheSameLogits) {
  const auto n_expert = static_cast<size_t>(kExperts);
  const MakeCachePolicy policies[] = {
      [](size_t n) { return std::make_unique<KeepsRecent>(n); }, usual_cache_policy,
      [](size_t n) { return std::make_unique<KeepsExpected>(n, KeepsFrequent::kHalfLife); }};
  EXPECT_FALSE(usual_cache_policy(n_expert)->looks_ahead());
  for (const MakeCachePolicy& policy : policies) {
    for (const int64_t n_slots : {1, 4, 11}) {
      for (const double fetched : {0.0, 0.5}) {
        SCOPED_TRACE(format("{} slots, {} fetched, looks ahead: {}", n_slots, fetched,
                            policy(n_expert)->looks_ahead()));
        EngineOptions o = exact();
        o.expert_policy = policy;
        test::SimDevice sim({.copy_bytes_per_s = 4e9});
        const auto s = session({host_.get(), &sim}, choice(n_slots, fetched), o);
        for (int i = 0; i < 3; ++i) expect_near(logits(*s), expected_), s->truncate(0);
        EXPECT_GT(counts(*s).n_kept + counts(*s).n_fetched, 0u);
      }
    }
  }
}

// An expert that the coming step is expected to use stays, whatever was used more, until the step has run.
TEST(CachePolicy, ExpectedExpertsStay) {
  KeepsExpected policy(4, 256);
  policy.used(0, 5);
  policy.used(1, 1);
  policy.end_step();
  EXPECT_GT(policy.score(0), policy.score(1));
  const std::vector<int32_t> guesses{1, 3};
  policy.expect(guesses);
  EXPECT_GT(policy.score(1), policy.score(0));
  EXPECT_GT(policy.score(3), policy.score(0));
  EXPECT_EQ(policy.score(1), policy.score(3));
  policy.end_step();
  EXPECT_GT(policy.score(0), policy.score(1));
  EXPECT_EQ(policy.score(3), 0);
}

TEST_F(ExpertsOnBoth, TwoGpus) {
  test::SimDevice first({.name = "SIM0"}), second({.name = "SIM1"});
  const auto s = session({host_.get(), &first, &second}, choice(4, 0.5));
  expect_near(logits(*s), expected_);
  EXPECT_GT(first.fetched_bytes(), 0u);
  EXPECT_GT(second.fetched_bytes(), 0u);
}

// Starts with what an earlier session has used most.
TEST_F(ExpertsOnBoth, WarmStarts) {
  const auto n_missing = [&](const ExpertUse* use, ExpertUse& recorded) {
    EngineOptions o = exact();
    if (use) o.offload.expert_use = std::make_shared<const ExpertUse>(*use);
    test::SimDevice sim({});
    const auto s = session({host_.get(), &sim}, choice(6, 0), o);
    expect_near(logits(*s), expected_);
    recorded = s->executor().expert_use();
    return counts(*s).n_used - counts(*s).n_found;
  };
  ExpertUse recorded, again;
  const uint64_t cold = n_missing(nullptr, recorded);
  uint64_t n_pairs = 0;
  for (const auto& [layer, used] : recorded.counts) {
    EXPECT_EQ(used.size(), static_cast<size_t>(kExperts));
    for (const uint64_t n : used) n_pairs += n;
  }
  EXPECT_EQ(n_pairs, static_cast<uint64_t>(3 * kLayers * kUsed));
  EXPECT_LT(n_missing(&recorded, again), cold);
  EXPECT_EQ(again.counts, recorded.counts);
}

// An expert that is used once does not replace one that earlier runs have used often.
TEST_F(ExpertsOnBoth, RecordedUseCounts) {
  ExpertUse use;
  for (int i = 0; i < kLayers; ++i) {
    use.counts[i].assign(kExperts, 1000);
    std::fill_n(use.counts[i].begin(), kExperts / 2, 0);
  }
  test::SimDevice sim({});
  const std::vector<Device*> devices{host_.get(), &sim};
  const EngineOptions o = placed(devices, choice(kExperts / 2, 1));
  const SessionGraphs graphs = session_graphs(model_->architecture(), o.context);
  std::vector<DevicePtr> memory;
  ExpertStore store(*host_, nullptr);
  ExpertCache cache(devices, store);
  cache.add(cached_layers(placed_graph(graphs.decode, o.placement), o.placement),
            [&](DeviceId, const Weight& slots) {
              memory.push_back(sim.alloc(sim.weight_bytes(slots)));
              sim.upload(memory.back(), slots);
              return memory.back();
            });
  cache.bring_most_used(use);
  const auto down = std::ranges::find(model_->weights(), "blk.2.ffn_down_exps.weight", &Weight::name);
  ASSERT_NE(down, model_->weights().end());
  const std::vector<int32_t> experts{0, 7, 11};
  std::vector<int32_t> slots(3);
  cache.find({.down = &*down, .experts = experts}, slots);
  cache.check();
  EXPECT_EQ(slots[0], -1);
  EXPECT_GE(slots[1], 0);
  EXPECT_GE(slots[2], 0);
  EXPECT_EQ(cache.counts().n_found, 2u);
  EXPECT_EQ(cache.counts().n_fetched + cache.counts().n_kept, 0u);
  sim.wait(sim.record());
  for (const DevicePtr address : memory) sim.free(address);
}

TEST_F(ExpertsOnBoth, FailuresAreErrorsAndLeaveNothing) {
  expect_clean_failures([&](test::SimDevice& sim) {
    const auto s = session({host_.get(), &sim}, choice(2, 0.5));
    logits(*s);
    sim.wait_for_all();  // fetches for a later step
  });
}

// After a fetch that fails the slots are empty, and the text goes on.
TEST_F(ExpertsOnBoth, AFailedFetchKeepsTheConversation) {
  const auto text = [&](test::SimDevice& sim, bool& failed) {
    const auto s = session({host_.get(), &sim}, choice(2, 0.5));
    s->append(prompt(20));
    std::vector<float> all;
    for (const int32_t id : {5, 280, 33, 7, 9}) {
      for (int tries = 0;; ++tries) {
        try {
          const auto row = s->append(std::span(&id, 1));
          all.insert(all.end(), row.begin(), row.end());
          break;
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), ErrorCode::io);
          failed = true;
          EXPECT_EQ(tries, 0);
        }
      }
    }
    return all;
  };
  bool failed = false;
  test::SimDevice works({});
  const std::vector<float> expected = text(works, failed);
  ASSERT_FALSE(failed);
  int n_failed = 0;
  for (int64_t i = works.n_copies() / 2; i < works.n_copies() - 4; i += 3) {
    failed = false;
    test::SimDevice sim({.fail_copy = i});
    try {
      expect_near(text(sim, failed), expected);
    } catch (const Error&) {  // while the prompt was read
      continue;
    }
    n_failed += failed;
  }
  EXPECT_GT(n_failed, 3);
}

// ---- Time ----

// A layer with attention, misses that the host computes and the bus brings, and hits: as long as the longer of both sides
// for what was chosen, and the others' overlap.
TEST_F(ExpertsOnBoth, StepsTakeAsLongAsTheLongerSide) {
  constexpr double kAttention = 3e-4, kOnHost = 1e-3, kOnGpu = 5e-5, kExpertBytes = 3 * 64 * 96 * 4;
  for (const double bus_s : {1e-3, 3e-3}) {  // an expert
    for (const double fetched : {0.0, kOnHost / (kOnHost + bus_s)}) {
      for (const int64_t n_slots : {1, 4, 8}) {
        SCOPED_TRACE(format("{} s over the bus, {} fetched, {} slots", bus_s, fetched, n_slots));
        const Session* running = nullptr;
        ExpertCacheCounts before{}, now{};
        double bound = 0;
        const auto has = [](const Segment& segment, auto is) {
          return std::ranges::any_of(
              segment.nodes, [&](int32_t i) { return is(segment.graph->nodes[static_cast<size_t>(i)].op); });
        };
        const auto is_experts = [](const Op& op) { return std::holds_alternative<MoeFfnOp>(op); };
        const auto is_attention = [](const Op& op) { return std::holds_alternative<AttentionOp>(op); };
        // Of the layer whose experts are divided now.
        const auto n_there = [&] {
          return static_cast<double>(now.n_found - before.n_found + now.n_fetched - before.n_fetched);
        };
        test::MeteredHost host({.run_s = [&](const Segment& s, const StepShape& shape) {
          if (!running || shape.n_tokens > 1 || !has(s, is_experts)) return 0.0;
          const double on_host = static_cast<double>(now.n_used - before.n_used) - n_there();
          const double brought = static_cast<double>(now.n_fetched - before.n_fetched) * bus_s;
          bound += kAttention + std::max(on_host * kOnHost, brought + n_there() * kOnGpu);
          return on_host * kOnHost;
        }});
        test::SimDevice sim({.times = {.bus_bytes_per_s = kExpertBytes / bus_s,
                                       .run_s =
                                           [&](const Segment& s, const StepShape& shape) {
                                             if (!running || shape.n_tokens > 1) return 0.0;
                                             if (has(s, is_experts)) {
                                               before = now;
                                               now = counts(*running);
                                               return n_there() * kOnGpu;
                                             }
                                             return has(s, is_attention) ? kAttention : 0.0;
                                           },
                                       .host_s = &host.host_s}});
        // In half the time of a layer that has one expert to compute on the host.
        const double kept = std::min(1.0, (kAttention + kOnHost) / 2 / bus_s);
        const auto s = session({&host, &sim}, choice(n_slots, fetched, kLayers, kept));
        decode_one(*s);
        running = s.get();
        now = counts(*s);
        const double begin = host.host_s;
        for (const int32_t id : prompt(40)) s->append(std::span(&id, 1));
        const double seconds = host.host_s - begin;
        EXPECT_GE(seconds, 0.98 * bound);
        EXPECT_LE(seconds, 1.1 * bound);
        running = nullptr;
      }
    }
  }
}

// ---- The plan ----

TEST_F(ExpertsOnBoth, OptionsSayHowMuch) {
  test::SimDevice sim({});
  const size_t of_one = kLayers * 3 * 64 * 96 * sizeof(float);  // an expert of each layer
  const auto slots_with = [&](size_t n_bytes) {
    EngineOptions o = exact();
    o.offload.n_gpu_layers = 99;
    o.offload.n_cpu_moe = 99;
    o.offload.expert_cache = n_bytes;
    o.offload.choose_by_speed = false;
    Session s(*model_, {host_.get(), &sim}, o);
    const CachedExperts* cached = cached_experts(s.placement().placement.layers[1].experts, StepKind::decode);
    return cached ? cached->n_slots : 0;
  };
  EXPECT_EQ(slots_with(0), 0);
  EXPECT_EQ(slots_with(of_one), 1);
  EXPECT_EQ(slots_with(4 * of_one - 1), 3);
  EXPECT_EQ(slots_with(1000 * of_one), kExperts - 1);
  try {
    slots_with(of_one - 1);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    EXPECT_THAT(e.what(), HasSubstr("one expert of each layer takes 360.0 KiB on SIM0"));
  }
}

// What is left of a GPU's memory goes to experts, if that is faster; which misses cross the bus follows from the rates.
TEST_F(ExpertsOnBoth, ThePlannerTakesTheMemoryThatIsLeft) {
  const size_t of_one = kLayers * 3 * 64 * 96 * sizeof(float);
  const SessionGraphs graphs = session_graphs(model_->architecture(), ContextOptions{256, 16});
  const std::vector<const Graph*> both = graphs.both();
  OffloadOptions options;
  options.n_gpu_layers = kLayers + 1;
  options.n_cpu_moe = kLayers;
  options.stream = Toggle::off;
  test::SimDevice large({});
  const auto best = [&](Device& sim, std::optional<size_t> cache, double memory) {
    options.expert_cache = cache;
    DeviceRates host{.read_bytes_per_s = 20e9, .ops_per_s = 1e12, .memory_bytes_per_s = memory};
    DeviceRates gpu{.read_bytes_per_s = 400e9, .ops_per_s = 20e12, .bus_bytes_per_s = 10e9};
    const std::vector<DeviceRates> rates{host, gpu};
    const DeviceModels devices{host_.get(), &sim};
    return fit({model_->architecture(), model_->weights(), devices, options, graphs.kv, both, rates});
  };
  const Fit without = best(large, 0, 40e9);
  EXPECT_EQ(without.choice.n_cached_experts, 0);
  const size_t needed = device_needs(without, 1);
  for (const int64_t n_slots : {1, 4, 9}) {
    SCOPED_TRACE(n_slots);
    const size_t room = needed + (size_t{256} << 20) + static_cast<size_t>(n_slots) * of_one + of_one / 2;
    test::SimDevice sim({.memory_bytes = room});
    options.n_gpu_layers = kLayers + 1;
    const Fit with = best(sim, std::nullopt, 40e9);
    // -ngl given: all free memory may be taken, the reserve too.
    EXPECT_EQ(with.choice.n_cached_experts, kExperts - 1);
    options.budgets.max_vram = room;  // of it the driver's part is kept free
    const Fit limited = best(sim, std::nullopt, 40e9);
    options.budgets.max_vram.reset();
    EXPECT_GE(limited.choice.n_cached_experts, n_slots - 1);  // activations may grow a little
    EXPECT_LE(limited.choice.n_cached_experts, n_slots);
    EXPECT_LE(device_needs(limited, 1), needed + static_cast<size_t>(n_slots) * of_one + of_one / 2);
    if (limited.choice.n_cached_experts == 0) continue;
    EXPECT_GT(limited.speed.decode_tokens_per_s, without.speed.decode_tokens_per_s);
    EXPECT_GT(with.speed.decode_tokens_per_s, limited.speed.decode_tokens_per_s);
  }
  // 20 GB/s of the CPU beside 10 of the bus.
  EXPECT_NEAR(best(large, 3 * of_one, 40e9).choice.fetched_experts, 1.0 / 3, 1e-6);
  // The CPU alone takes all that the memory gives.
  EXPECT_EQ(best(large, 3 * of_one, 20e9).choice.fetched_experts, 0);
  const std::string text = [&] {
    options.expert_cache = 3 * of_one;
    const DeviceModels devices{host_.get(), &large};
    const FitRequest request{model_->architecture(), model_->weights(), devices, options, graphs.kv, both};
    return explain(request, fit(request));
  }();
  EXPECT_THAT(text, HasSubstr("  3 experts on SIM0 too"));
  EXPECT_THAT(text, HasSubstr("experts on GPUs: 15 of 60 experts; decoding finds "));
}

// What the user asked for and cannot be is said.
TEST_F(ExpertsOnBoth, ACacheWithoutEffectIsReported) {
  test::SimDevice sim({});
  const std::string log = directory_.path("log");
  set_log_file(log);
  const auto warned = [&](const OffloadChoice& c, size_t n_bytes) {
    std::filesystem::resize_file(log, 0);
    EngineOptions o = exact();
    o.offload.expert_cache = n_bytes;
    session({host_.get(), &sim}, c, o);
    std::ifstream file(log);
    return std::string((std::istreambuf_iterator<char>(file)), {});
  };
  EXPECT_THAT(warned(choice(3, 0), 1), Not(HasSubstr("no effect")));
  EXPECT_THAT(warned(choice(0, 0, 0), 0), Not(HasSubstr("no effect")));
  const char* const elsewhere = "has no effect: no layer has its experts on the host and the rest on a GPU";
  EXPECT_THAT(warned(choice(0, 0, 0), 1), HasSubstr(elsewhere));  // all on the GPU
  OffloadChoice streamed = choice(0, 0);
  streamed.streaming = Streaming::always;
  EXPECT_THAT(warned(streamed, 1), HasSubstr(elsewhere));
  const char* const no_room = "has no effect: no GPU has room for an expert of each layer";
  EXPECT_THAT(warned(choice(0, 0), 1), HasSubstr(no_room));
  OffloadChoice disk = choice(0, 0);
  disk.chosen_experts = true;
  disk.n_expert_bytes = 1 << 20;
  EXPECT_THAT(warned(disk, 1), HasSubstr(no_room));
}

// A placement that has no use for the cache that the user asked for is not chosen for its speed.
TEST_F(ExpertsOnBoth, ThePlannerDoesNotStreamPastTheCache) {
  const SessionGraphs graphs = session_graphs(model_->architecture(), ContextOptions{256, 16});
  const std::vector<const Graph*> both = graphs.both();
  const DeviceRates host{.read_bytes_per_s = 1e9, .ops_per_s = 1e10, .memory_bytes_per_s = 1e12};
  const DeviceRates gpu{.read_bytes_per_s = 400e9, .ops_per_s = 20e12, .bus_bytes_per_s = 200e9};
  const std::vector<DeviceRates> rates{host, gpu};
  test::SimDevice sim({});
  const DeviceModels devices{host_.get(), &sim};
  OffloadOptions options;
  options.n_gpu_layers = 2;
  options.n_cpu_moe = kLayers;
  const auto streaming = [&](std::optional<size_t> cache) {
    options.expert_cache = cache;
    return fit({model_->architecture(), model_->weights(), devices, options, graphs.kv, both, rates})
        .choice.streaming;
  };
  EXPECT_EQ(streaming(0), Streaming::always);
  EXPECT_NE(streaming(kLayers * 3 * 64 * 96 * sizeof(float)), Streaming::always);
}

// Experts move to page-locked memory once a few times as much has been fetched of them.
TEST_F(ExpertsOnBoth, ExpertsOftenFetchedArePinned) {
  for (const int64_t fail : {-1, 2}) {
    test::MeteredHost host;
    test::SimDevice sim({.copy_bytes_per_s = 1e9, .fail_pin = fail});
    EngineOptions o = placed({&host, &sim}, choice(1, 1.0));
    o.placement.pins_fetched = true;
    Session s(*model_, {&host, &sim}, o);
    const size_t n_all = kLayers * kExperts * 3 * 64 * 96 * sizeof(float);
    while (sim.fetched_bytes() < 8 * n_all) {  // some experts more often than others
      s.truncate(0);
      expect_near(logits(s), expected_);
    }
    const uint64_t fetched = sim.fetched_bytes(), pinned = sim.pinned_bytes_fetched();
    s.truncate(0);
    logits(s);
    if (fail < 0) {
      EXPECT_EQ(sim.pinned_bytes_fetched() - pinned, sim.fetched_bytes() - fetched);
      EXPECT_GE(sim.n_pinned(), 3u);
    } else {
      EXPECT_EQ(sim.n_pinned(), 2u);
    }
  }
}

}  // namespace
}  // namespace tandem
