// Experts on disk: steps read those that they choose, and the logits equal those of a model in memory bit for bit, with
// caches of all sizes, for single tokens, batches and guesses, beside a GPU and after failures. No step reads an expert
// twice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "engine/generate.h"
#include "exec/expert_store.h"
#include "support/batch_rig.h"
#include "support/metered_host.h"
#include "support/moody_disk.h"
#include "support/sim_disk.h"
#include "support/split_rig.h"

namespace tandem {
namespace {

using testing::HasSubstr;

class ExpertsOnDisk : public test::BatchRig {
 protected:
  static constexpr int64_t kLayers = 5, kExperts = 12, kUsed = 3;

  void SetUp() override {
    model_ = load("model.gguf", shape());
    expected_ = cpu_logits(*model_, options());
  }
  static test::TinyShape shape() {
    test::TinyShape shape;
    shape.n_layer = kLayers;
    shape.n_expert = kExperts;
    shape.n_expert_used = kUsed;
    return shape;
  }

  // Prompts of 37 tokens take steps of many tokens, then of few.
  EngineOptions options(int64_t n_ubatch = 32) {
    EngineOptions o;
    o.context.n_ctx = 256;
    o.context.n_ubatch = n_ubatch;
    o.oom_ladder = false;
    o.open_disk = [this](std::vector<DiskFile> files) {
      return std::make_unique<test::MoodyDisk>(std::move(files), seed_++, &log_);
    };
    return o;
  }
  Placement placed(const std::vector<Device*>& devices, OffloadChoice choice) {
    choice.chosen_experts = true;
    return place(model_->architecture(), model_->weights(), devices, {}, choice);
  }
  std::unique_ptr<Session> session(const std::vector<Device*>& devices, const OffloadChoice& choice,
                                   EngineOptions o) {
    o.placement = placed(devices, choice);
    return std::make_unique<Session>(*model_, devices, o);
  }

  // Of all experts, in the slots of a store.
  size_t all_bytes() {
    const SessionGraphs graphs = session_graphs(model_->architecture(), {.n_ctx = 64, .n_ubatch = 16});
    const Placement placement = placed({host_.get()}, {.n_expert_bytes = SIZE_MAX / 2});
    const ExpertRoom room = expert_room(graphs.decode, placement);
    EXPECT_EQ(room.n_slots(), static_cast<size_t>(kLayers * kExperts));
    return room.n_bytes();
  }
  std::vector<size_t> rooms() {
    const size_t all = all_bytes();
    return {0, all / 8, all / 4, all / 2, all - 1, all, 2 * all};
  }

  // What the steps of `run` read, and that none reads the same twice. `run` takes a function to call after each step.
  template <class Run>
  void expect_no_read_twice(const Run& run) {
    run([&] {
      const std::set<const std::byte*> once(log_.begins.begin(), log_.begins.end());
      EXPECT_EQ(once.size(), log_.begins.size());
      log_.begins.clear();
    });
  }

  std::unique_ptr<Model> model_;
  std::vector<float> expected_;
  test::DiskLog log_;
  uint64_t seed_ = 1;
};

TEST_F(ExpertsOnDisk, TheSameLogitsWithAnyRoom) {
  for (const int64_t n_ubatch : {16, 32, 64}) {
    const std::vector<float> expected = cpu_logits(*model_, options(n_ubatch));
    for (const size_t room : rooms()) {
      for (const int64_t n_disk_layers : {0, 4}) {
        SCOPED_TRACE(format("{} bytes, micro-batch {}, {} layers on disk", room, n_ubatch, n_disk_layers));
        test::MeteredHost host;
        const auto s =
            session({&host}, {.n_disk_layers = n_disk_layers, .n_expert_bytes = room}, options(n_ubatch));
        ASSERT_EQ(logits(*s), expected);
        s->truncate(0);
        ASSERT_EQ(logits(*s), expected);  // with what the store has now
        const Footprint& bytes = s->placement().bytes;
        EXPECT_EQ(host.used_bytes(), bytes.devices[0].total() - bytes.devices[0].scratch);
        EXPECT_EQ(s->executor().slot_bytes(DeviceId::host()), bytes.devices[0].staging);
        EXPECT_LE(bytes.expert_slots, std::max(room, 2 * kUsed * (all_bytes() / (kLayers * kExperts))));
      }
    }
  }
}

TEST_F(ExpertsOnDisk, SeveralThreads) {
  const auto host = cpu::make_cpu_device({3, 3});
  for (const size_t room : rooms()) {
    const auto s = session({host.get()}, {.n_expert_bytes = room}, options());
    EXPECT_EQ(logits(*s), expected_);
  }
}

TEST_F(ExpertsOnDisk, ReadOnlyWhatIsChosen) {
  const auto s = session({host_.get()}, {.n_expert_bytes = 0}, options());
  const int32_t first = 5;
  s->append(std::span(&first, 1));
  const ExpertCounts& counts = s->executor().experts().counts();
  EXPECT_EQ(counts.n_used, static_cast<uint64_t>(kLayers * kUsed));
  EXPECT_EQ(counts.n_found, 0u);
  EXPECT_EQ(counts.n_read, counts.n_used);
  EXPECT_EQ(counts.read_bytes, log_.n_bytes);
  EXPECT_EQ(s->executor().disk_bytes(), log_.n_bytes);
  const uint64_t of_matrices = counts.n_read * 3 * 64 * 96 * sizeof(float);
  EXPECT_GE(log_.n_bytes, of_matrices);
  EXPECT_LE(log_.n_bytes, of_matrices + counts.n_read * 3 * 2 * kDiskAlignment);
}

TEST_F(ExpertsOnDisk, WithRoomForAllEachIsReadOnce) {
  const auto s = session({host_.get()}, {.n_expert_bytes = all_bytes()}, options());
  for (int i = 0; i < 20; ++i) logits(*s), s->truncate(0);
  const std::set<const std::byte*> once(log_.begins.begin(), log_.begins.end());
  EXPECT_EQ(once.size(), log_.begins.size());
  EXPECT_LE(s->executor().experts().counts().n_read, static_cast<uint64_t>(kLayers * kExperts));
}

TEST_F(ExpertsOnDisk, NoStepReadsAnExpertTwice) {
  for (const size_t room : rooms()) {
    SCOPED_TRACE(room);
    const auto s = session({host_.get()}, {.n_expert_bytes = room}, options(64));
    expect_no_read_twice([&](const auto& after_step) {
      s->append(prompt(64));
      after_step();
      s->append(prompt(10));
      after_step();
      for (const int32_t id : {5, 280, 33, 7, 9, 11}) {
        s->append(std::span(&id, 1));
        after_step();
      }
    });
  }
}

// What a text has used is told for its prompt and its answer.
TEST_F(ExpertsOnDisk, GenerationsAreCounted) {
  const auto s = session({host_.get()}, {.n_expert_bytes = 0}, options());
  SamplerParams greedy;
  greedy.temp = 0;
  greedy.ignore_eos = true;
  GenerateOptions generation;
  generation.n_predict = 5;
  const auto generate_five = [&] {
    Sampler sampler(greedy, sampler_model(*s));
    const int32_t first = 5;
    return generate(*s, sampler, std::span(&first, 1), generation, {});
  };
  for (int i = 0; i < 2; ++i) {
    log_.n_bytes = 0;
    const GenerateStats stats = generate_five();
    const ExpertCounts &prompt = stats.prompt_experts, &answer = stats.answer_experts;
    EXPECT_EQ(prompt.n_used, static_cast<uint64_t>(kLayers * kUsed));
    EXPECT_EQ(answer.n_used, 4 * prompt.n_used);  // the first token comes with the prompt
    EXPECT_EQ(prompt.n_read, prompt.n_used);      // there is room for one layer
    EXPECT_EQ(answer.n_read, answer.n_used);
    EXPECT_EQ(prompt.n_found + answer.n_found, 0u);
    EXPECT_EQ(prompt.read_bytes + answer.read_bytes, log_.n_bytes);
  }
  EXPECT_EQ(s->expert_counts(), s->executor().experts().counts());
  Session in_memory(*model_, {host_.get()}, options());
  EXPECT_EQ(in_memory.expert_counts(), ExpertCounts{});
}

// When memory runs out in the middle, the store is made anew.
TEST_F(ExpertsOnDisk, CountsSurviveTheLadder) {
  EngineOptions o = options(64);
  o.oom_ladder = true;
  const OffloadChoice choice{.n_gpu_layers = 2, .n_cpu_moe = kLayers, .n_expert_bytes = 0};
  const std::vector<float> expected = cpu_logits(*model_, options(64));
  test::SimDevice works({});
  const auto whole = session({host_.get(), &works}, choice, o);
  EXPECT_EQ(logits(*whole), expected);
  const uint64_t n_used = whole->expert_counts().n_used;
  test::SimDevice sim({.fail_run = works.n_runs() - 2});  // in the last step
  const auto s = session({host_.get(), &sim}, choice, o);
  EXPECT_EQ(logits(*s), expected);
  EXPECT_LT(s->executor().experts().counts().n_used, n_used);
  EXPECT_GE(s->expert_counts().n_used, n_used);
}

// What an earlier session has used most is there when it is needed.
TEST_F(ExpertsOnDisk, WarmStarts) {
  const auto run = [&](const ExpertUse* use, ExpertUse& recorded) {
    EngineOptions o = options();
    if (use) o.offload.expert_use = std::make_shared<const ExpertUse>(*use);
    const auto s = session({host_.get()}, {.n_expert_bytes = all_bytes() / 2}, o);
    EXPECT_EQ(logits(*s), expected_);
    recorded = s->executor().experts().use();
    const ExpertCounts& counts = s->executor().experts().counts();
    EXPECT_LE(counts.n_read, 3 * static_cast<uint64_t>(kLayers * kExperts));
    return counts.n_used - counts.n_found;
  };
  ExpertUse recorded, again, wrong;
  const uint64_t cold = run(nullptr, recorded);
  uint64_t n_pairs = 0;
  for (const auto& [layer, counts] : recorded.counts) {
    EXPECT_EQ(counts.size(), static_cast<size_t>(kExperts));
    for (const uint64_t n : counts) n_pairs += n;
  }
  // 40 tokens; in the last layer the one of each step whose logits are wanted.
  EXPECT_EQ(n_pairs, static_cast<uint64_t>(kUsed * ((kLayers - 1) * 40 + 5)));
  EXPECT_LT(run(&recorded, again), cold);
  EXPECT_EQ(again.counts, recorded.counts);
  wrong.counts = {{0, {1, 2}}, {99, std::vector<uint64_t>(kExperts, 1)}};  // of other layers: passed over
  run(&wrong, again);
}

// The first step comes while all slots are still being read into, for experts that it does not use.
TEST_F(ExpertsOnDisk, AWarmStartThatIsNotDone) {
  ExpertUse use;
  for (int i = 0; i < kLayers; ++i) use.counts[i].assign(kExperts, 1);
  use.counts[kLayers - 1].assign(kExperts, 2);  // first those of the last layer
  test::MeteredHost host;
  EngineOptions o = options();
  o.offload.expert_use = std::make_shared<const ExpertUse>(use);
  o.open_disk = [&host](std::vector<DiskFile> files) {
    return std::make_unique<test::SimDisk>(std::move(files),
                                           test::SimDiskOptions{.bytes_per_s = 1e6, .host_s = &host.host_s});
  };
  for (const size_t room : {size_t{0}, all_bytes() / 8}) {
    const auto s = session({&host}, {.n_expert_bytes = room}, o);
    EXPECT_EQ(logits(*s), expected_);
  }
}

// A prompt that uses every expert leaves most of the store as it is.
TEST_F(ExpertsOnDisk, LongPromptsPassThroughFewSlots) {
  const auto s = session({host_.get()}, {.n_expert_bytes = all_bytes() / 2}, options(128));
  const auto decode = [&] {
    for (int i = 0; i < 6; ++i) decode_one(*s);
  };
  decode();
  const auto found_share = [&](const auto& run) {
    const ExpertCounts before = s->executor().experts().counts();
    run();
    const ExpertCounts& after = s->executor().experts().counts();
    return static_cast<double>(after.n_found - before.n_found) /
           static_cast<double>(after.n_used - before.n_used);
  };
  const double warm = found_share(decode);
  s->append(prompt(128));
  s->truncate(12);
  EXPECT_GE(found_share(decode), 0.6 * warm);
}

TEST_F(ExpertsOnDisk, BesideAGpu) {
  test::SimDevice sim({.copy_bytes_per_s = 1e9});
  const std::vector<float> expected = cpu_logits(*model_, options());
  for (const Streaming streaming : {Streaming::none, Streaming::prefill, Streaming::always}) {
    for (const int64_t n_gpu_layers : {0, 2, 6}) {
      for (const int64_t n_cpu_moe : {0, 3, 5}) {
        for (const int64_t n_disk_layers : {0, 2}) {
          SCOPED_TRACE(format("{} -ngl {}, {} experts on the CPU, {} on disk", streaming_name(streaming),
                              n_gpu_layers, n_cpu_moe, n_disk_layers));
          test::MeteredHost host;
          const auto s = session({&host, &sim},
                                 {.n_gpu_layers = n_gpu_layers,
                                  .n_cpu_moe = n_cpu_moe,
                                  .streaming = streaming,
                                  .n_disk_layers = n_disk_layers,
                                  .n_expert_bytes = all_bytes() / 3},
                                 options());
          ASSERT_EQ(logits(*s), expected);
          const Footprint& bytes = s->placement().bytes;
          EXPECT_EQ(host.used_bytes(), bytes.devices[0].total() - bytes.devices[0].scratch);
          EXPECT_EQ(sim.used_bytes(), bytes.devices[1].total());
        }
      }
    }
  }
}

TEST_F(ExpertsOnDisk, BatchesOfOneToSixteenSequences) {
  for (const int64_t n_sequences : {1, 2, 5, 16}) {
    const std::vector<BatchRequest> list = requests(static_cast<int>(n_sequences) + 4);
    const std::vector<std::string> expected = alone(*model_, list);
    for (const size_t room : {size_t{0}, all_bytes() / 4, all_bytes()}) {
      SCOPED_TRACE(format("{} sequences, {} bytes", n_sequences, room));
      EngineOptions o = BatchRig::options(n_sequences);
      o.open_disk = options().open_disk;
      o.placement = placed({host_.get()}, {.n_expert_bytes = room});
      Runtime runtime(*model_, {host_.get()}, o);
      Batcher batcher(runtime);
      EXPECT_EQ(together(batcher, list), expected);
    }
  }
}

TEST_F(ExpertsOnDisk, StepsThatCheckGuesses) {
  EngineOptions o = options();
  o.context.n_draft = 5;
  Session whole(*model_, {host_.get()}, o);
  const std::vector<float> expected = guessed_logits(whole);
  for (const size_t room : rooms()) {
    const auto s = session({host_.get()}, {.n_expert_bytes = room}, o);
    log_.begins.clear();
    EXPECT_EQ(guessed_logits(*s), expected);
  }
}

// ---- Failures ----

TEST_F(ExpertsOnDisk, EveryReadThatFails) {
  for (const size_t room : {size_t{0}, all_bytes() / 3}) {
    EngineOptions o = options();
    const auto with = [&](const test::SimDiskOptions& disk, const auto& check) {
      o.open_disk = [disk](std::vector<DiskFile> files) {
        return std::make_unique<test::SimDisk>(std::move(files), disk);
      };
      const auto s = session({host_.get()}, {.n_expert_bytes = room}, o);
      check(*s);
    };
    int64_t n = 0;
    with({.n_reads = &n}, [&](Session& s) { EXPECT_EQ(logits(s), expected_); });
    ASSERT_GT(n, kLayers * kUsed);
    int64_t n_noticed =
        0;  // the others are guesses of what the next layer needs: wrong ones, and some that are read again
    for (int64_t i = 0; i < n; ++i) {
      SCOPED_TRACE(i);
      int64_t count = 0;
      with({.n_reads = &count, .fail_read = i}, [&](Session& s) {
        try {
          EXPECT_EQ(logits(s), expected_);
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), ErrorCode::io);
          ++n_noticed;
        }
        if (count <= i) return;  // how much is read ahead depends on how long reads take
        s.truncate(0);
        EXPECT_EQ(logits(s), expected_);
      });
    }
    EXPECT_GT(n_noticed, n / 4);
  }
}

// The text before a failed step is kept, and the step can be repeated.
TEST_F(ExpertsOnDisk, AFailedStepKeepsTheConversation) {
  int64_t count = 0, n_before = 0;
  EngineOptions o = options();
  test::SimDiskOptions disk{.n_reads = &count};
  o.open_disk = [&disk](std::vector<DiskFile> files) {
    return std::make_unique<test::SimDisk>(std::move(files), disk);
  };
  std::vector<float> expected;
  {
    const auto s = session({host_.get()}, {.n_expert_bytes = 0}, o);
    s->append(prompt(37));
    n_before = count;
    const int32_t id = 9;
    const std::span<const float> row = s->append(std::span(&id, 1));
    expected.assign(row.begin(), row.end());
    ASSERT_GT(count, n_before);
  }
  const int64_t n_reads = count;
  for (int64_t i = n_before; i < n_reads; ++i) {
    SCOPED_TRACE(i);
    int64_t n = 0;
    disk = {.n_reads = &n, .fail_read = i};
    const auto s = session({host_.get()}, {.n_expert_bytes = 0}, o);
    s->append(prompt(37));
    ASSERT_EQ(n, n_before);
    EXPECT_THROW(decode_one(*s), Error);
    EXPECT_EQ(s->n_past(), 37);
    const int32_t id = 9;
    const std::span<const float> row = s->append(std::span(&id, 1));
    EXPECT_TRUE(std::equal(row.begin(), row.end(), expected.begin(), expected.end()));
  }
}

// ---- Planning ----

class PlannedExperts : public ExpertsOnDisk {
 protected:
  // Bytes that everything but experts takes, with the least room for them.
  size_t least() {
    OffloadOptions flags;
    flags.budgets.max_ram = 1;
    try {
      plan(flags);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::out_of_memory);
      const std::string message = e.what();
      EXPECT_THAT(message, HasSubstr("max_ram: "));
      return std::stoull(message.substr(9));
    }
    ADD_FAILURE() << "one byte is enough";
    return 0;
  }
  Fit plan(const OffloadOptions& flags) {
    EngineOptions o = options();
    const PlanRequest request{model_->architecture(), model_->weights(), {host_.get()}, flags, o.context};
    return std::move(plan_session(request).front().fit);
  }
};

TEST_F(PlannedExperts, ExpertsAreTheFirstToLeaveMemory) {
  size_t whole = 0;
  {
    OffloadOptions flags;
    const Fit fit = plan(flags);
    EXPECT_FALSE(fit.choice.reads_disk());
    whole = device_needs(fit, 0);
  }
  OffloadOptions flags;
  size_t room_before = SIZE_MAX;
  for (const size_t less : {size_t{1}, all_bytes() / 4, all_bytes() / 2, all_bytes() * 3 / 4}) {
    SCOPED_TRACE(less);
    flags.budgets.max_ram = whole - less;
    const Fit fit = plan(flags);
    EXPECT_TRUE(fit.choice.chosen_experts);
    EXPECT_EQ(fit.choice.n_disk_layers, 0);
    EXPECT_LE(device_needs(fit, 0), *flags.budgets.max_ram);
    // All of the budget but less than a slot of each pool.
    EXPECT_GT(device_needs(fit, 0) + all_bytes() / (kLayers * kExperts), *flags.budgets.max_ram);
    EXPECT_LT(fit.bytes.expert_slots, room_before);
    room_before = fit.bytes.expert_slots;
    for (const LayerPlacement& layer : fit.placement.layers) {
      EXPECT_TRUE(std::holds_alternative<InMemory>(layer.weights));
      EXPECT_TRUE(layer.reads_chosen());
    }
  }
}

TEST_F(PlannedExperts, TheLeastIsRoomForOneStepAndRuns) {
  OffloadOptions flags;
  flags.budgets.max_ram = least();
  const Fit fit = plan(flags);
  EXPECT_GT(fit.choice.n_disk_layers, 0);
  EXPECT_TRUE(fit.choice.chosen_experts);
  EngineOptions o = options();
  o.offload = flags;
  test::MeteredHost host;
  Session s(*model_, {&host}, o);
  EXPECT_EQ(logits(s), expected_);
  EXPECT_LE(host.peak_bytes() + s.placement().bytes.mapped_weights, *flags.budgets.max_ram);
}

// What a GPU pins for its copies is taken from the budget.
TEST_F(PlannedExperts, PinnedMemoryIsInTheBudget) {
  constexpr size_t kCopies = 300'000, kFetches = 200'000;
  const auto planned = [&](PinnedBytes pinned, Toggle stream, std::optional<size_t> max_ram) {
    test::SimDevice sim({.pinned = pinned});
    OffloadOptions flags;
    flags.n_gpu_layers = 2;
    flags.n_cpu_moe = kLayers;
    flags.stream = stream;
    flags.budgets.max_ram = max_ram;
    EngineOptions o = options();
    return std::move(
        plan_session({model_->architecture(), model_->weights(), {host_.get(), &sim}, flags, o.context})
            .front()
            .fit);
  };
  for (const Toggle stream : {Toggle::off, Toggle::on}) {
    const size_t n_pinned = stream == Toggle::on ? kCopies + kFetches : kCopies;
    const size_t whole = device_needs(planned({}, stream, {}), 0);
    EXPECT_EQ(device_needs(planned({kCopies, kFetches}, stream, {}), 0), whole + n_pinned);
    const size_t budget = whole - all_bytes() / 4;
    const Fit without = planned({}, stream, budget), with = planned({kCopies, kFetches}, stream, budget);
    EXPECT_LE(device_needs(with, 0), budget);
    if (stream == Toggle::on) continue;  // the GPU gets whole layers: there are no slots for experts
    // Fewer slots, by what is pinned.
    const size_t slot = all_bytes() / (kLayers * kExperts);
    EXPECT_NEAR(static_cast<double>(without.bytes.expert_slots - with.bytes.expert_slots),
                static_cast<double>(n_pinned), static_cast<double>(slot));
  }
}

TEST_F(PlannedExperts, StayInMemoryWithoutTheDisk) {
  OffloadOptions flags;
  flags.disk = Toggle::off;
  flags.budgets.max_ram = least();
  EXPECT_THROW(plan(flags), Error);
}

}  // namespace
}  // namespace tandem
