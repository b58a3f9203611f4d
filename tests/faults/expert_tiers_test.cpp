// Experts on disk, in host memory and on a GPU at once: with slots and memory for any number of them, whatever is computed on
// which side and brought when, logits are those of the CPU, for single tokens, batches and guesses, and after failures. No
// step reads an expert twice. The simulated device ends the test when a slot is overwritten that a run may still read, and
// a borrowed expert that is overwritten in host memory gives wrong logits, because the disk writes garbage first.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/error.h"
#include "exec/expert_cache.h"
#include "plan/fit.h"
#include "plan/session_plan.h"
#include "support/expert_rig.h"
#include "support/metered_host.h"
#include "support/sim_disk.h"

namespace tandem {
namespace {

using testing::HasSubstr;

using ExpertTiers = test::ExpertRig;

TEST_F(ExpertTiers, TheSameLogitsWithAnySlotsAndMemory) {
  for (const Streaming streaming : {Streaming::none, Streaming::prefill}) {
    for (const size_t room : rooms()) {
      for (const int64_t n_slots : {1, 5, 11}) {
        for (const double fetched : {0.0, 0.4, 1.0}) {
          for (const int64_t n_cpu_moe : {2, 5}) {
            if (n_cpu_moe == 2 && fetched == 0.4) continue;
            SCOPED_TRACE(format("{}, {} bytes, {} slots, {} fetched, {} layers", streaming_name(streaming),
                                room, n_slots, fetched, n_cpu_moe));
            test::MeteredHost host;
            test::SimDevice sim({.copy_bytes_per_s = 4e9});
            OffloadChoice c = choice(n_slots, fetched, room, n_cpu_moe);
            c.streaming = streaming;
            const auto s = session({&host, &sim}, c, options());
            for (int i = 0; i < 3; ++i) {
              expect_near(logits(*s), expected_);
              if (HasFatalFailure()) return;
              s->truncate(0);  // then with what is there
            }
            const Footprint& bytes = s->placement().bytes;
            EXPECT_EQ(sim.used_bytes(), bytes.devices[1].total());
            EXPECT_EQ(host.used_bytes(), bytes.devices[0].total() - bytes.devices[0].scratch);
            EXPECT_EQ(on_gpu(*s).n_used, static_cast<uint64_t>(3 * 3 * n_cpu_moe * kUsed));
            EXPECT_GT(on_gpu(*s).n_kept + on_gpu(*s).n_fetched, 0u);
          }
        }
      }
    }
  }
}

// What the GPU has is neither read nor computed by the host: of the same tokens again and again, nothing is in the end.
TEST_F(ExpertTiers, TheHostIsAskedForWhatTheGpuLacks) {
  for (const double fetched : {0.0, 0.5}) {
    test::SimDevice sim({});
    const auto s = session({host_.get(), &sim}, choice(kExperts - 1, fetched, 0), options());
    const auto asked_by = [&](int n) {
      const uint64_t before = of_store(*s).n_used;
      for (int i = 0; i < n; ++i) decode_one(*s), s->truncate(0);
      return of_store(*s).n_used - before;
    };
    EXPECT_GE(asked_by(1), static_cast<uint64_t>(kLayers * kUsed));
    asked_by(2 * kUsed);
    EXPECT_EQ(asked_by(5), 0u);
    EXPECT_GT(on_gpu(*s).n_found, static_cast<uint64_t>(5 * kLayers * kUsed));
    // What is lent is a copy of what was read: an expert comes to the GPU once.
    EXPECT_LE(on_gpu(*s).n_kept + on_gpu(*s).n_fetched, static_cast<uint64_t>(kLayers * kUsed));
    EXPECT_EQ(on_gpu(*s).fetched_bytes, (on_gpu(*s).n_kept + on_gpu(*s).n_fetched) * 3 * 64 * 96 * 4);
  }
}

TEST_F(ExpertTiers, NoStepReadsAnExpertTwice) {
  for (const size_t room : rooms()) {
    for (const int64_t n_slots : {1, 5}) {
      SCOPED_TRACE(format("{} bytes, {} slots", room, n_slots));
      test::SimDevice sim({});
      EngineOptions o = options();
      o.context.n_ubatch = 64;
      const auto s = session({host_.get(), &sim}, choice(n_slots, 0.4, room), o);
      const auto expect_no_read_twice = [&] {
        const std::set<const std::byte*> once(log_.begins.begin(), log_.begins.end());
        EXPECT_EQ(once.size(), log_.begins.size());
        log_.begins.clear();
      };
      s->append(prompt(64));
      expect_no_read_twice();
      for (const int32_t id : prompt(60)) {
        s->append(std::span(&id, 1));
        expect_no_read_twice();
      }
    }
  }
}

TEST_F(ExpertTiers, BatchesOfOneToSixteenSequences) {
  for (const int64_t n_sequences : {1, 2, 5, 16}) {
    const std::vector<BatchRequest> list = requests(static_cast<int>(n_sequences) + 4);
    const std::vector<std::string> expected = alone(*model_, list);
    for (const size_t room : {size_t{0}, kOfAll / 4}) {
      for (const int64_t n_slots : {1, 7}) {
        SCOPED_TRACE(format("{} sequences, {} bytes, {} slots", n_sequences, room, n_slots));
        test::SimDevice sim({});
        const std::vector<Device*> devices{host_.get(), &sim};
        EngineOptions o = BatchRig::options(n_sequences);
        o.open_disk = options().open_disk;
        Runtime runtime(*model_, devices, placed(devices, choice(n_slots, 0.6, room), o));
        Batcher batcher(runtime);
        EXPECT_EQ(together(batcher, list), expected);
      }
    }
  }
}

TEST_F(ExpertTiers, StepsThatCheckGuesses) {
  EngineOptions o = options();
  o.context.n_draft = 5;
  Session whole(*model_, {host_.get()}, o);
  const std::vector<float> expected = guessed_logits(whole);
  for (const size_t room : rooms()) {
    test::SimDevice sim({});
    const auto s = session({host_.get(), &sim}, choice(4, 0.5, room), o);
    expect_near(guessed_logits(*s), expected);
  }
}

TEST_F(ExpertTiers, TwoGpus) {
  for (const size_t room : rooms()) {
    test::SimDevice first({.name = "SIM0"}), second({.name = "SIM1"});
    const auto s = session({host_.get(), &first, &second}, choice(4, 0.5, room), options());
    for (int i = 0; i < 3; ++i) expect_near(logits(*s), expected_), s->truncate(0);
    EXPECT_GT(first.fetched_bytes(), 0u);
    EXPECT_GT(second.fetched_bytes(), 0u);
  }
}

TEST_F(ExpertTiers, WithDeferredExperts) {
  EngineOptions o = options();
  o.context.n_deferred = 1;
  const std::vector<float> expected = cpu_logits(*model_, o);
  for (const size_t room : rooms()) {
    test::SimDevice sim({});
    const auto s = session({host_.get(), &sim}, choice(4, 0.5, room), o);
    for (int i = 0; i < 3; ++i) expect_near(logits(*s), expected), s->truncate(0);
  }
}

// Uses are counted once, and told to who watches, whoever computes.
TEST_F(ExpertTiers, EveryUseIsCountedAndToldOnce) {
  std::map<int, std::vector<uint64_t>> told;
  EngineOptions o = options();
  o.on_experts = [&](const ChosenInLayer& chosen) {
    told[chosen.layer].resize(kExperts);
    for (const WantedExpert& e : chosen.experts)
      told[chosen.layer][static_cast<size_t>(e.expert)] += static_cast<uint64_t>(e.n_tokens);
  };
  test::SimDevice sim({});
  const auto n_pairs_told = [&](const OffloadChoice& c) {
    told.clear();
    const auto s = session({host_.get(), &sim}, c, o);
    logits(*s);
    EXPECT_EQ(s->executor().expert_use().counts, told);
    uint64_t n_pairs = 0;
    for (const auto& [layer, counts] : told) {
      for (const uint64_t n : counts) n_pairs += n;
    }
    return n_pairs;
  };
  OffloadChoice c = choice(5, 0.4, kOfAll / 4);
  // 40 tokens; in the last layer those whose logits are wanted.
  EXPECT_EQ(n_pairs_told(c), static_cast<uint64_t>(kUsed * ((kLayers - 1) * 40 + 3 + 3)));
  c.chosen_experts = false;  // all in memory: the steps that look for them on the GPU
  EXPECT_EQ(n_pairs_told(c), static_cast<uint64_t>(kUsed * kLayers * 3));
}

// What the next layer's router would choose is told too, as for experts on disk.
TEST_F(ExpertTiers, GuessesAreTold) {
  for (const bool on_disk : {false, true}) {
    std::vector<std::pair<int, std::vector<int32_t>>> told;
    EngineOptions o = options();
    o.on_experts = [&](const ChosenInLayer& chosen) {
      told.emplace_back(chosen.layer, std::vector(chosen.guesses.begin(), chosen.guesses.end()));
    };
    test::SimDevice sim({});
    OffloadChoice c = choice(5, 0.4, kOfAll / 4);
    c.chosen_experts = on_disk;
    const auto s = session({host_.get(), &sim}, c, o);
    for (const int32_t id : {5, 280}) s->append(std::span(&id, 1));
    ASSERT_EQ(told.size(), static_cast<size_t>(2 * kLayers));
    for (size_t i = 0; i < told.size(); ++i) {
      EXPECT_EQ(told[i].first, static_cast<int>(i) % kLayers);
      EXPECT_EQ(told[i].second.size(), told[i].first < kLayers - 1 ? static_cast<size_t>(kUsed) : 0u);
    }
  }
}

// Starts with what an earlier session has used most: on the GPU, and in memory what comes next.
TEST_F(ExpertTiers, WarmStarts) {
  for (const size_t room : rooms()) {
    SCOPED_TRACE(room);
    const auto run = [&](const ExpertUse* use, ExpertUse& recorded) {
      EngineOptions o = options();
      if (use) o.offload.expert_use = std::make_shared<const ExpertUse>(*use);
      test::SimDevice sim({});
      const auto s = session({host_.get(), &sim}, choice(6, 0, room), o);
      if (use) {
        EXPECT_EQ(sim.fetched_bytes(), 6u * kLayers * 3 * 64 * 96 * 4);
        const std::set<const std::byte*> once(log_.begins.begin(), log_.begins.end());
        EXPECT_EQ(once.size(), log_.begins.size());  // nothing is read for both
      }
      log_.begins.clear();
      for (const int32_t id : {5, 280, 33, 5, 280, 33}) s->append(std::span(&id, 1));
      recorded = s->executor().expert_use();
      log_.begins.clear();
      return on_gpu(*s).n_used - on_gpu(*s).n_found;
    };
    ExpertUse recorded, again;
    const uint64_t cold = run(nullptr, recorded);
    EXPECT_LT(run(&recorded, again), cold);
    EXPECT_EQ(again.counts, recorded.counts);
  }
}

// ---- Failures ----

TEST_F(ExpertTiers, EveryReadThatFails) {
  for (const size_t room : {size_t{0}, kOfAll / 3}) {
    const auto with = [&](const test::SimDiskOptions& disk, const auto& check) {
      test::SimDevice sim({});
      const auto s = session({host_.get(), &sim}, choice(3, 0.4, room), reading(disk));
      check(*s);
    };
    int64_t n = 0;
    with({.n_reads = &n}, [&](Session& s) { expect_near(logits(s), expected_); });
    ASSERT_GT(n, kLayers * kUsed);
    int64_t n_noticed = 0;  // the others are guesses
    for (int64_t i = 0; i < n; i += 3) {
      SCOPED_TRACE(i);
      int64_t count = 0;
      with({.n_reads = &count, .fail_read = i}, [&](Session& s) {
        try {
          expect_near(logits(s), expected_);
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), ErrorCode::io);
          ++n_noticed;
        }
        if (count <= i) return;
        s.truncate(0);
        expect_near(logits(s), expected_);
      });
    }
    EXPECT_GT(n_noticed, n / 12);
  }
}

// A warm start that cannot read says so.
TEST_F(ExpertTiers, AWarmStartThatCannotRead) {
  ExpertUse use;
  for (int i = 0; i < kLayers; ++i) use.counts[i].assign(kExperts, 7);
  int64_t count = 0;
  EngineOptions o = reading({.n_reads = &count, .fail_read = 9});
  o.offload.expert_use = std::make_shared<const ExpertUse>(use);
  test::SimDevice sim({});
  try {
    session({host_.get(), &sim}, choice(6, 0, kOfAll / 3), o);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::io);
  }
  EXPECT_EQ(sim.used_bytes(), 0u);
}

TEST_F(ExpertTiers, FailuresOfTheGpuAreErrorsAndLeaveNothing) {
  expect_clean_failures(
      [&](test::SimDevice& sim) {
        const auto s = session({host_.get(), &sim}, choice(2, 0.5, 0), options());
        logits(*s);
        sim.wait_for_all();  // fetches for a later step
      },
      3);
}

// After a fetch that fails the slots are empty, nothing is lent any more, and the text goes on.
TEST_F(ExpertTiers, AFailedFetchKeepsTheConversation) {
  const auto text = [&](test::SimDevice& sim, bool& failed) {
    const auto s = session({host_.get(), &sim}, choice(2, 0.5, 0), options());
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

// When the GPU's memory runs out in the middle, it keeps no experts any more, and the disk is read for all.
TEST_F(ExpertTiers, TheLadderEndsTheCache) {
  EngineOptions o = options();
  o.oom_ladder = true;
  o.context.n_ubatch = 32;
  test::SimDevice works({});
  const auto whole = session({host_.get(), &works}, choice(4, 0.5, 0), o);
  const std::vector<float> expected = logits(*whole);
  test::SimDevice sim({.fail_run = works.n_runs() - 2});  // in the last step
  const auto s = session({host_.get(), &sim}, choice(4, 0.5, 0), o);
  expect_near(logits(*s), expected);
  EXPECT_FALSE(s->placement().placement.caches_experts(StepKind::decode));
  EXPECT_TRUE(s->placement().placement.reads_chosen());
}

// ---- Time ----

// The GPU's attention, the reads of what neither has, and the bus that brings experts for later: as long as the disk takes
// for what is missing, where that is the most, and never longer than all of it one after the other.
TEST_F(ExpertTiers, StepsTakeAsLongAsTheDiskReads) {
  constexpr double kAttention = 2e-4, kRead = 1e-3, kExpertBytes = 3 * 64 * 96 * 4;
  for (const int64_t n_slots : {1, 4, 8}) {
    for (const size_t room : {kOfAll / 8, kOfAll / 3}) {
      SCOPED_TRACE(format("{} slots, {} bytes", n_slots, room));
      bool timed = false;
      test::MeteredHost host;
      test::SimDevice sim({.times = {.bus_bytes_per_s = kExpertBytes / (kRead / 4),
                                     .run_s =
                                         [&](const Segment& s, const StepShape&) {
                                           const bool attends = std::ranges::any_of(s.nodes, [&](int32_t i) {
                                             return std::holds_alternative<AttentionOp>(
                                                 s.graph->nodes[static_cast<size_t>(i)].op);
                                           });
                                           return timed && attends ? kAttention : 0.0;
                                         },
                                     .host_s = &host.host_s}});
      int64_t n_reads = 0;
      const auto s =
          session({&host, &sim}, choice(n_slots, 0, room, kLayers, 0.25),
                  reading({.bytes_per_s = kOfOne / kRead, .host_s = &host.host_s, .n_reads = &n_reads}));
      for (const int32_t id : prompt(20)) s->append(std::span(&id, 1));
      timed = true;
      const double begin = host.host_s;
      const ExpertCounts before = s->expert_counts();
      for (const int32_t id : prompt(60)) s->append(std::span(&id, 1));
      const ExpertCounts n = s->expert_counts() - before;
      const double seconds = host.host_s - begin;
      const double disk_s = static_cast<double>(n.read_bytes) / (kOfOne / kRead);
      const double attention_s = 60 * kLayers * kAttention;
      EXPECT_GE(seconds, 0.98 * std::max(disk_s, attention_s));
      EXPECT_LE(seconds, 1.1 * (disk_s + attention_s));
      // Reads for nothing are few: wrong guesses of the next layer's.
      EXPECT_LE(n.n_read, n.n_used - n.n_found + n.n_ahead);
    }
  }
}

// ---- The plan ----

class PlannedTiers : public ExpertTiers {
 protected:
  static constexpr size_t kOnGpu = kLayers * 3 * 64 * 96 * sizeof(float);  // an expert of each layer

  Fit plan(Device& sim, const OffloadOptions& flags) {
    const SessionGraphs graphs = session_graphs(model_->architecture(), ContextOptions{256, 16});
    const std::vector<const Graph*> both = graphs.both();
    const std::vector<DeviceRates> rates{host_rates_, gpu_rates_};
    const DeviceModels devices{host_.get(), &sim};
    const FitRequest request{
        model_->architecture(), model_->weights(), devices, flags, graphs.kv, both, rates};
    Fit best = fit(request);
    explained_ = explain(request, best);
    return best;
  }
  static OffloadOptions flags(std::optional<size_t> cache, std::optional<size_t> max_ram) {
    OffloadOptions o;
    o.n_gpu_layers = kLayers + 1;
    o.n_cpu_moe = kLayers;
    o.stream = Toggle::off;
    o.expert_cache = cache;
    o.budgets.max_ram = max_ram;
    return o;
  }

  DeviceRates host_rates_{
      .read_bytes_per_s = 20e9, .ops_per_s = 1e12, .disk_bytes_per_s = 1e9, .memory_bytes_per_s = 40e9};
  DeviceRates gpu_rates_{.read_bytes_per_s = 400e9, .ops_per_s = 20e12, .bus_bytes_per_s = 10e9};
  std::string explained_;
};

TEST_F(PlannedTiers, ExpertsOnDiskAreKeptOnTheGpuWhereThatIsFaster) {
  test::SimDevice sim({});
  const size_t whole = device_needs(plan(sim, flags(0, {})), 0);
  double before = INFINITY;
  for (const size_t less : {kOfAll / 4, kOfAll / 2, kOfAll * 3 / 4}) {
    SCOPED_TRACE(less);
    const size_t max_ram = whole - less;
    const Fit without = plan(sim, flags(0, max_ram)), with = plan(sim, flags(6 * kOnGpu, max_ram));
    EXPECT_TRUE(without.choice.chosen_experts);
    EXPECT_TRUE(with.choice.chosen_experts);
    EXPECT_EQ(without.choice.n_cached_experts, 0);
    EXPECT_EQ(with.choice.n_cached_experts, 6);
    EXPECT_GT(with.speed.decode_tokens_per_s, 1.2 * without.speed.decode_tokens_per_s);
    EXPECT_LT(with.speed.decode_tokens_per_s, before);
    before = with.speed.decode_tokens_per_s;
    // All of the budget but less than an expert.
    EXPECT_LE(device_needs(with, 0), max_ram);
    EXPECT_GT(device_needs(with, 0) + kOfOne, max_ram);
    EXPECT_GE(device_needs(with, 1), device_needs(without, 1) + 6 * kOnGpu);
    for (const LayerPlacement& layer : with.placement.layers) {
      EXPECT_TRUE(layer.reads_chosen());
      EXPECT_NE(cached_experts(layer.experts, StepKind::decode), nullptr);
    }
    EXPECT_THAT(explained_, HasSubstr("  6 experts on SIM0 too; finds "));
    EXPECT_THAT(explained_, HasSubstr(" of the others in memory"));
    EXPECT_THAT(explained_, HasSubstr("experts on GPUs: 30 of 60 experts; decoding finds "));
    EXPECT_THAT(explained_, HasSubstr("; decoding finds "));
    EXPECT_THAT(explained_, HasSubstr("of what GPUs lack there"));
  }
}

// The planner chooses it itself; what the GPU and the host have together is not read.
TEST_F(PlannedTiers, WhatBothHaveTogetherIsNotRead) {
  test::SimDevice sim({});
  const size_t whole = device_needs(plan(sim, flags(0, {})), 0);
  const Fit fit = plan(sim, flags({}, whole - kOfAll / 2));
  EXPECT_EQ(fit.choice.n_cached_experts, kExperts - 1);  // there is room
  EXPECT_THAT(explained_, HasSubstr("finds 100% of what GPUs lack there"));
  EXPECT_THAT(explained_, HasSubstr("and reads 0.0 KiB a step"));
}

// What a GPU pins for fetches is in the host's budget, for a cache too.
TEST_F(PlannedTiers, PinnedMemoryIsInTheBudget) {
  constexpr size_t kCopies = 300'000, kFetches = 200'000;
  test::SimDevice plain({}), pins({.pinned = {kCopies, kFetches}});
  for (const bool on_disk : {false, true}) {
    const size_t whole = device_needs(plan(plain, flags(3 * kOnGpu, {})), 0);
    EXPECT_EQ(device_needs(plan(pins, flags(3 * kOnGpu, {})), 0), whole + kCopies + kFetches);
    if (!on_disk) continue;
    const size_t max_ram = whole - kOfAll / 4;
    const Fit without = plan(plain, flags(3 * kOnGpu, max_ram)),
              with = plan(pins, flags(3 * kOnGpu, max_ram));
    EXPECT_EQ(with.choice.n_cached_experts, 3);
    EXPECT_LE(device_needs(with, 0), max_ram);
    EXPECT_NEAR(static_cast<double>(without.bytes.expert_slots - with.bytes.expert_slots),
                static_cast<double>(kCopies + kFetches), static_cast<double>(kOfOne));
  }
}

// As planned, so allocated and computed.
TEST_F(PlannedTiers, SessionsRunAsPlanned) {
  test::SimDevice sim({});
  const size_t whole = device_needs(plan(sim, flags(0, {})), 0);
  for (const size_t less : {kOfAll / 4, kOfAll * 3 / 4}) {
    EngineOptions o = options();
    o.offload = flags(4 * kOnGpu, whole - less);
    o.rates = {host_rates_, gpu_rates_};
    test::MeteredHost host;
    Session s(*model_, {&host, &sim}, o);
    EXPECT_TRUE(s.placement().placement.reads_chosen());
    EXPECT_TRUE(s.placement().placement.caches_experts(StepKind::decode));
    expect_near(logits(s), expected_);
    const Footprint& bytes = s.placement().bytes;
    EXPECT_EQ(sim.used_bytes(), bytes.devices[1].total());
    EXPECT_EQ(host.used_bytes(), bytes.devices[0].total() - bytes.devices[0].scratch);
    EXPECT_LE(host.peak_bytes() + bytes.mapped_weights, whole - less);
  }
}

}  // namespace
}  // namespace tandem
