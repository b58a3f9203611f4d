// Every combination of where experts are and who computes with those that a GPU lacks: slots for none to all but one of a
// layer, misses that the host computes, that are brought, and both, experts in memory and on disk with room for none to all,
// steps of single tokens, of guesses and of 1 to 16 sequences, on a slow bus, with reads that end in any order or fail. Logits
// and texts are those of the CPU.
#include <gtest/gtest.h>

#include "base/error.h"
#include "support/expert_rig.h"

namespace tandem {
namespace {

class ExpertCombinations : public test::ExpertRig {
 protected:
  // Calls fn(choice) for every combination of a cache and of the tiers behind it.
  template <class Fn>
  void for_each_combination(const Fn& fn) {
    for (const bool on_disk : {false, true}) {
      for (const size_t room : on_disk ? rooms() : std::vector<size_t>{0}) {
        for (const int64_t n_slots : {0, 1, 6, 11}) {
          for (const double fetched : {0.0, 0.5, 1.0}) {
            if (n_slots == 0 && fetched > 0) continue;
            SCOPED_TRACE(format("{}, {} bytes, {} slots, {} fetched", on_disk ? "on disk" : "in memory", room,
                                n_slots, fetched));
            OffloadChoice c = choice(n_slots, fetched, room);
            c.chosen_experts = on_disk;
            fn(c);
            if (HasFailure()) return;
          }
        }
      }
    }
  }
  // Prompts of few tokens, and short answers.
  static std::vector<BatchRequest> short_requests(int n) {
    std::vector<BatchRequest> list = requests(n);
    for (BatchRequest& r : list) {
      r.prompt.resize(std::min<size_t>(r.prompt.size(), 3 + static_cast<size_t>(r.index)));
      r.generation.n_predict = std::min<int64_t>(r.generation.n_predict, 5);
    }
    return list;
  }
};

TEST_F(ExpertCombinations, SingleTokensAndGuesses) {
  EngineOptions o = options();
  o.context.n_draft = 5;
  Session whole(*model_, {host_.get()}, o);
  const std::vector<float> guessed = guessed_logits(whole);
  for_each_combination([&](const OffloadChoice& c) {
    test::SimDevice sim({.copy_bytes_per_s = 4e9});
    const auto s = session({host_.get(), &sim}, c, o);
    expect_near(logits(*s), expected_);
    s->truncate(0);
    expect_near(guessed_logits(*s), guessed);
    s->truncate(0);
    expect_near(logits(*s), expected_);
    EXPECT_EQ(on_gpu(*s).n_used > 0, c.n_cached_experts > 0);
    EXPECT_EQ(of_store(*s).n_used > 0, c.chosen_experts);
  });
}

TEST_F(ExpertCombinations, BatchesOfOneToSixteenSequences) {
  const std::vector<BatchRequest> list = short_requests(18);
  const std::vector<std::string> expected = alone(*model_, list);
  for_each_combination([&](const OffloadChoice& c) {
    for (const int64_t n_sequences : {1, 3, 16}) {
      test::SimDevice sim({.copy_bytes_per_s = 4e9});
      const std::vector<Device*> devices{host_.get(), &sim};
      EngineOptions o = BatchRig::options(n_sequences);
      o.open_disk = options().open_disk;
      Runtime runtime(*model_, devices, placed(devices, c, o));
      Batcher batcher(runtime);
      EXPECT_EQ(together(batcher, list), expected) << n_sequences;
    }
  });
}

// A read in the middle or a copy fails: the text before is kept, and the step can be repeated.
TEST_F(ExpertCombinations, FailuresInTheMiddle) {
  int n_failed = 0;
  for_each_combination([&](const OffloadChoice& c) {
    const auto run = [&](const test::SimDiskOptions& disk, test::SimDevice& sim) {
      EngineOptions o = reading(disk);
      o.context.n_draft = 5;
      const auto s = session({host_.get(), &sim}, c, o);
      for (int tries = 0; tries < 2; ++tries) {
        try {
          const std::vector<float> got = logits(*s);
          expect_near(got, expected_);
          return;
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), ErrorCode::io);
          EXPECT_EQ(tries, 0);
          ++n_failed;
          s->truncate(0);
        }
      }
    };
    int64_t n_reads = 0;
    test::SimDevice works({});
    run({.n_reads = &n_reads}, works);
    for (const int64_t part : {2, 3, 5}) {
      int64_t count = 0;
      test::SimDevice reads({}), copies({.fail_copy = works.n_copies() - works.n_copies() / (2 * part)});
      if (c.chosen_experts) run({.n_reads = &count, .fail_read = n_reads / part}, reads);
      run({}, copies);
    }
  });
  EXPECT_GT(n_failed, 40);
}

}  // namespace
}  // namespace tandem
