// tandem run --mpi with mpirun on this machine: the text of one process, and what happens to ranks that fail or are killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <thread>

#include "support/mpi_run.h"
#include "support/process.h"
#include "support/tiny_model.h"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using test::MpiRun;
using test::Outcome;
using test::shell;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// As a terminal gets it, which mpirun is to rank 0: without control characters.
std::string shown(const std::string& text) {
  std::string result;
  for (const char c : text) {
    const bool is_control = static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t';
    result += is_control ? "\xef\xbf\xbd" : std::string(1, c);
  }
  return result;
}

class RunRanks : public testing::Test {
 protected:
  void SetUp() override {
    TANDEM_NEED_BINARY();
    TANDEM_NEED_MPI();
    test::tiny_llama({.n_layer = 6}).write(tiny_);
    test::tiny_llama({.n_layer = 5, .n_expert = 4, .n_expert_used = 2}).write(mixture_);
    std::string birds = "Once there were";
    for (int i = 0; i < 60; ++i) birds += " many birds and some more";
    test::write_file(prompt_, birds);
  }

  static std::vector<std::string> options(const std::string& model, const std::string& prompt, int n_predict,
                                          std::vector<std::string> more = {}) {
    std::vector<std::string> o{"-m",
                               model,
                               "-f",
                               prompt,
                               "-t",
                               "1",
                               "--temp",
                               "0",
                               "-n",
                               std::to_string(n_predict),
                               "-c",
                               "4096",
                               "--no-display-prompt"};
    o.insert(o.end(), more.begin(), more.end());
    return o;
  }
  MpiRun::Command command(const std::string& model, int n_predict,
                          const std::vector<std::string>& more = {}) const {
    MpiRun::Command c{test::binary_path(), "run", "--mpi"};
    for (const std::string& o : options(model, prompt_, n_predict, more)) c.push_back(o);
    return c;
  }
  // With its text on stdout and its messages on stderr.
  std::string alone(const std::string& model, int n_predict,
                    const std::vector<std::string>& more = {}) const {
    std::string line = "run";
    for (const std::string& o : options(model, prompt_, n_predict, more)) line += " '" + o + "'";
    const Outcome o = shell("", line + " 2>/dev/null");
    EXPECT_EQ(o.exit_code, 0) << o.out;
    return o.out;
  }
  // The text that so many ranks write.
  std::string text_of(int n_ranks, const std::string& model, int n_predict,
                      std::vector<std::string> more = {}) const {
    more.push_back("--log-disable");  // mpirun mixes both outputs
    MpiRun run(n_ranks, command(model, n_predict, more));
    EXPECT_EQ(run.wait(), 0) << run.output();
    EXPECT_TRUE(MpiRun::wait_until([&] { return run.left().empty(); }, 5s));
    return run.output();
  }

  test::TempDir directory_;
  std::string tiny_ = directory_.path("tiny.gguf"), mixture_ = directory_.path("mixture.gguf"),
              demo_ = test::test_data("../models/tandem-demo-Q8_0.gguf"),
              prompt_ = directory_.path("prompt.txt");
};

TEST_F(RunRanks, WriteTheTextOfOneProcess) {
  for (const std::string& model : {demo_, tiny_, mixture_}) {
    SCOPED_TRACE(model);
    const std::string expected = shown(alone(model, 40));
    for (int n_ranks = 1; n_ranks <= 4; ++n_ranks)
      EXPECT_EQ(text_of(n_ranks, model, 40), expected) << n_ranks;
  }
}

// Sampling, stop strings, a full context and guesses are matters of rank 0 and reach the others as steps.
TEST_F(RunRanks, HaveTheFeaturesOfOneProcess) {
  const std::vector<std::vector<std::string>> features = {
      {"--temp", "0.8", "--seed", "7", "--top-k", "0"},
      {"--temp", "0.8", "--seed", "7"},
      {"-r", "e"},
      {"--spec", "ngram"},
      {"-c", "700", "--context-shift", "-n", "200"},
  };
  for (const std::vector<std::string>& more : features) {
    SCOPED_TRACE(more[0] + " " + more[1]);
    EXPECT_EQ(text_of(3, demo_, 60, more), shown(alone(demo_, 60, more)));
  }
}

TEST_F(RunRanks, DivideAsTold) {
  MpiRun run(3, command(tiny_, 5, {"--rank-layers", "1,4,1", "--explain", "--compare-files"}));
  EXPECT_EQ(run.wait(), 0) << run.output();
  EXPECT_THAT(run.output(), AllOf(HasSubstr("layers 0-0 on rank 0 on "), HasSubstr(", 1-4 on rank 1 on "),
                                  HasSubstr(", 5-5 on rank 2 on ")));
  for (const char* rank : {"rank 0 on ", "rank 1 on ", "rank 2 on "})
    EXPECT_THAT(run.output(), HasSubstr(rank));
  EXPECT_THAT(run.output(), HasSubstr(" ms a step of single tokens; waited "));
  MpiRun wrong(2, command(tiny_, 5, {"--rank-layers", "1,4,1"}));
  EXPECT_EQ(wrong.wait(), 2);
  EXPECT_THAT(wrong.output(), AllOf(HasSubstr("tandem: error: layers of each rank: found 3 numbers"),
                                    Not(HasSubstr("rank 0 on"))));
  MpiRun many(5, command(demo_, 5));
  EXPECT_EQ(many.wait(), 2);
  EXPECT_THAT(many.output(),
              HasSubstr("a model of 4 layers makes at most 4 stages, but there are 5 ranks: start fewer"));
}

TEST_F(RunRanks, ErrorsOfARankNameIt) {
  const std::string missing = directory_.path("none.gguf");
  MpiRun all(3, command(missing, 3));
  EXPECT_EQ(all.wait(), 5);
  EXPECT_THAT(all.output(),
              AllOf(HasSubstr("tandem: error: " + missing + ": cannot open"), Not(HasSubstr("rank 0 on"))));
  MpiRun one({command(tiny_, 3), command(missing, 3)});
  EXPECT_EQ(one.wait(), 5);
  EXPECT_THAT(one.output(),
              AllOf(HasSubstr("tandem: error: rank 1 on "), HasSubstr(missing + ": cannot open")));
  MpiRun models({command(tiny_, 3), command(tiny_, 3), command(mixture_, 3)});
  EXPECT_EQ(models.wait(), 2);
  EXPECT_THAT(models.output(),
              AllOf(HasSubstr("rank 2 on "), HasSubstr("the model differs from that of rank 0")));
  MpiRun memory({command(tiny_, 3), command(tiny_, 3, {"--max-ram", "1K"})});
  EXPECT_EQ(memory.wait(), 4);
  EXPECT_THAT(memory.output(),
              HasSubstr("tandem: error: rank 1 has 1.0 KiB of memory, and the smallest part of the"));
  for (const char* option : {"--mlock", "--no-mmap"}) {
    MpiRun refused(2, command(tiny_, 3, {option}));
    EXPECT_EQ(refused.wait(), 2);
    EXPECT_THAT(refused.output(), HasSubstr(std::string(option) + " contradicts --mpi"));
  }
}

TEST_F(RunRanks, HaveOptionsThatNeedThem) {
  for (const char* option : {"--rank-layers 1,5", "--compare-files"}) {
    const Outcome o = shell("", "run -m " + tiny_ + " -p a " + option + " 2>&1");
    EXPECT_EQ(o.exit_code, 2);
    EXPECT_THAT(o.out, HasSubstr("are for ranks: give --mpi too"));
  }
}

class KilledStage : public RunRanks, public testing::WithParamInterface<int> {
 protected:
  std::string named() const { return "tandem: error: rank " + std::to_string(GetParam()) + " on "; }
};
INSTANTIATE_TEST_SUITE_P(Ranks, KilledStage, testing::Values(0, 1, 2));

TEST_P(KilledStage, WhileItLoads) {
  MpiRun run(3, command(demo_, 32));
  ASSERT_TRUE(MpiRun::wait_until([&] { return run.has_mapped(GetParam(), demo_); })) << run.output();
  kill(run.worker(GetParam()), SIGKILL);
  run.expect_end(5, named());
  EXPECT_THAT(run.output(), HasSubstr("was ended by signal 9 (Killed)"));
}

// A rank that dies while it joins the others may leave Open MPI 4.1's mpirun in a deadlock of its own (PMIx finalizes with a
// lock that it holds): only what is ours has to end.
TEST_P(KilledStage, BeforeItHasJoined) {
  MpiRun run(3, command(demo_, 32));
  ASSERT_TRUE(MpiRun::wait_until([&] { return run.worker(GetParam()) != 0; }));
  kill(run.worker(GetParam()), SIGKILL);
  EXPECT_TRUE(MpiRun::wait_until(
      [&] { return std::ranges::all_of(run.left(), [&](pid_t pid) { return pid == run.mpirun(); }); }, 5s));
  EXPECT_THAT(run.output(), HasSubstr(named()));
  EXPECT_THAT(run.output(), HasSubstr("was ended by signal 9 (Killed)"));
}

TEST_P(KilledStage, InPrefill) {
  std::string birds;
  for (int i = 0; i < 20000; ++i) birds += " and some more birds";
  test::write_file(prompt_, birds);
  MpiRun run(3, command(demo_, 1, {"-c", "200000"}));
  ASSERT_TRUE(MpiRun::wait_until([&] { return run.output().find("3 ranks (") != std::string::npos; }))
      << run.output();
  std::this_thread::sleep_for(300ms);
  kill(run.worker(GetParam()), SIGKILL);
  run.expect_end(5, named());
}

TEST_P(KilledStage, InDecode) {
  MpiRun run(3, command(demo_, -1, {"-c", "100000", "--ignore-eos", "--display-prompt"}));
  ASSERT_TRUE(MpiRun::wait_until([&] { return run.output().find("some more") != std::string::npos; }))
      << run.output();
  std::this_thread::sleep_for(1s);
  kill(run.worker(GetParam()), SIGKILL);
  run.expect_end(5, named());
}

TEST_F(RunRanks, EndWithTheirLauncher) {
  MpiRun run(3, command(demo_, -1, {"-c", "100000", "--ignore-eos", "--display-prompt"}));
  ASSERT_TRUE(MpiRun::wait_until([&] { return run.output().find("some more") != std::string::npos; }))
      << run.output();
  kill(run.mpirun(), SIGINT);
  EXPECT_NE(run.wait(), 0);
  EXPECT_TRUE(MpiRun::wait_until([&] { return run.left().empty(); }, 5s));
}

}  // namespace
}  // namespace tandem
