// tandem batch --mpi with mpirun on this machine: the answers of one process, and what happens to ranks that are killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>

#include "support/mpi_run.h"
#include "support/process.h"
#include "support/text_files.h"
#include "support/tiny_model.h"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::ordered_json;
using test::MpiRun;
using test::Outcome;
using test::shell;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> sorted_lines(const std::string& path) {
  std::vector<std::string> lines = test::lines_of(test::file_bytes(path));
  std::ranges::sort(lines);
  return lines;
}

class BatchRanks : public testing::Test {
 protected:
  void SetUp() override {
    TANDEM_NEED_BINARY();
    TANDEM_NEED_MPI();
    test::tiny_llama().write(tiny_);
    test::tiny_llama({.n_expert = 4, .n_expert_used = 2}).write(mixture_);
  }

  void write_prompts(int n, const std::string& more = "") {
    std::string text;
    for (int i = 1; i <= n; ++i) {
      if (i == 5) text += "\n";  // line 5 is empty
      text +=
          Json{{"prompt", "Once there were " + std::to_string(i) + " birds" + more}, {"id", i}}.dump() + "\n";
    }
    test::write_file(input_, text);
  }
  // Greedy, on one thread, one after the other: the same bits in every run.
  MpiRun::Command command(const std::string& model, int n_predict, const std::string& output = "") const {
    return {test::binary_path(),
            "batch",
            "--mpi",
            "-m",
            model,
            "-i",
            input_,
            "-o",
            output.empty() ? output_ : output,
            "--temp",
            "0",
            "-np",
            "1",
            "-t",
            "1",
            "-n",
            std::to_string(n_predict)};
  }
  Outcome alone(const std::string& model, int n_predict, const std::string& output) const {
    return shell("", "batch -m " + model + " --temp 0 -np 1 -t 1 -n " + std::to_string(n_predict) + " -i " +
                         input_ + " -o " + output + " 2>&1");
  }
  size_t n_answers() const { return test::lines_of(test::file_bytes(output_)).size(); }

  test::TempDir directory_;
  std::string tiny_ = directory_.path("tiny.gguf"), mixture_ = directory_.path("mixture.gguf"),
              demo_ = test::test_data("../models/tandem-demo-Q8_0.gguf"),
              input_ = directory_.path("in.jsonl"), output_ = directory_.path("out.jsonl"),
              alone_ = directory_.path("alone.jsonl");
};

TEST_F(BatchRanks, AnswerWhatOneProcessDoes) {
  write_prompts(40);
  int n_ranks = 2;
  for (const std::string& model : {demo_, tiny_, mixture_}) {
    SCOPED_TRACE(model);
    for (const std::string& file : {output_, alone_}) std::remove(file.c_str());
    ASSERT_EQ(alone(model, 16, alone_).exit_code, 0);
    MpiRun run(n_ranks, command(model, 16));
    EXPECT_EQ(run.wait(), 0) << run.output();
    EXPECT_EQ(sorted_lines(output_), sorted_lines(alone_));
    EXPECT_THAT(run.output(), AllOf(HasSubstr("tandem: 40 answers"), HasSubstr("tandem: lines: rank 0 on "),
                                    HasSubstr(", rank " + std::to_string(n_ranks - 1) + " on ")));
    // Nothing is left to do, for ranks and for one process.
    MpiRun again(n_ranks++, command(model, 16));
    EXPECT_EQ(again.wait(), 0);
    EXPECT_THAT(again.output(), AllOf(HasSubstr("40 lines already done"), HasSubstr(": nothing to answer")));
    EXPECT_THAT(alone(model, 16, output_).out, HasSubstr("40 lines already done"));
    EXPECT_EQ(n_answers(), 40u);
  }
}

TEST_F(BatchRanks, BadLinesAreAnswersToo) {
  test::write_file(input_, "{\"prompt\": \"a\"}\nnonsense\n{\"prompt\": \"b\", \"id\": 3}\n");
  MpiRun run(2, command(tiny_, 3));
  EXPECT_EQ(run.wait(), 3);
  EXPECT_THAT(run.output(), HasSubstr("warning: " + input_ + ": line 2: "));
  ASSERT_EQ(alone(tiny_, 3, alone_).exit_code, 3);
  EXPECT_EQ(sorted_lines(output_), sorted_lines(alone_));
}

// kill -9 of mpirun, again and again: no rank lives on, and every answer is there once at the end.
TEST_F(BatchRanks, GoOnWhereTheyWereKilled) {
  write_prompts(150);
  for (int i = 0; i < 2; ++i) {
    const size_t n_before = n_answers();
    MpiRun run(3, command(demo_, 32));
    ASSERT_TRUE(MpiRun::wait_until([&] { return n_answers() > n_before + 10; })) << run.output();
    kill(run.mpirun(), SIGKILL);
    run.wait();
    EXPECT_TRUE(MpiRun::wait_until([&] { return run.left().empty(); }, 5s));
    EXPECT_LT(n_answers(), 150u);
  }
  MpiRun rest(3, command(demo_, 32));
  EXPECT_EQ(rest.wait(), 0) << rest.output();
  EXPECT_THAT(rest.output(), HasSubstr("lines already done"));
  ASSERT_EQ(alone(demo_, 32, alone_).exit_code, 0);
  EXPECT_EQ(sorted_lines(output_), sorted_lines(alone_));
}

class KilledRank : public BatchRanks, public testing::WithParamInterface<int> {
 protected:
  std::string named() const { return "tandem: error: rank " + std::to_string(GetParam()) + " on "; }
};
INSTANTIATE_TEST_SUITE_P(Ranks, KilledRank, testing::Values(0, 1, 2));

TEST_P(KilledRank, WhileItLoads) {
  write_prompts(20);
  MpiRun run(3, command(demo_, 32));
  ASSERT_TRUE(MpiRun::wait_until([&] { return run.has_mapped(GetParam(), demo_); })) << run.output();
  kill(run.worker(GetParam()), SIGKILL);
  run.expect_end(5, named());
  EXPECT_THAT(run.output(), HasSubstr("was ended by signal 9 (Killed)"));
}

TEST_P(KilledRank, InPrefill) {
  std::string birds;
  for (int i = 0; i < 400; ++i) birds += " and some more birds";
  write_prompts(400, birds);
  auto one = command(demo_, 1);
  one.insert(one.end(), {"--ctx-sequence", "4096", "-c", "4096"});
  MpiRun run(3, one);
  ASSERT_TRUE(MpiRun::wait_until([&] {
    return run.output().find("3 ranks on 1 machine") != std::string::npos;
  })) << run.output();
  kill(run.worker(GetParam()), SIGKILL);
  run.expect_end(5, named());
}

TEST_P(KilledRank, InDecode) {
  write_prompts(400);
  MpiRun run(3, command(demo_, 100));
  ASSERT_TRUE(MpiRun::wait_until([&] { return n_answers() > 3; })) << run.output();
  kill(run.worker(GetParam()), SIGKILL);
  run.expect_end(5, named());
}

// mpirun itself then names the rank.
TEST_F(BatchRanks, WithoutItsWatcherARankEndsToo) {
  write_prompts(400);
  MpiRun run(2, command(demo_, 100));
  ASSERT_TRUE(MpiRun::wait_until([&] { return n_answers() > 1; })) << run.output();
  kill(run.watcher(1), SIGKILL);
  EXPECT_NE(run.wait(), 0);
  EXPECT_THAT(run.output(), HasSubstr("rank 1"));
  EXPECT_TRUE(MpiRun::wait_until([&] { return run.left().empty(); }, 5s));
}

TEST_F(BatchRanks, ErrorsOfARankAreThoseOfAll) {
  write_prompts(3);
  // The same on every rank: said once, without a number.
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
  EXPECT_EQ(n_answers(), 0u);
}

TEST_F(BatchRanks, OneRankNeedsNoLauncher) {
  write_prompts(6);
  ASSERT_EQ(alone(tiny_, 5, alone_).exit_code, 0);
  const Outcome o =
      shell("cat " + input_ + " |", "batch --mpi -m " + tiny_ + " -t 1 -np 1 --temp 0 -n 5 2>&1 >" + output_);
  EXPECT_EQ(o.exit_code, 0) << o.out;
  EXPECT_THAT(o.out, AllOf(HasSubstr("tandem: 1 rank on 1 machine (Open MPI"),
                           HasSubstr("tandem: lines: rank 0 on ")));
  EXPECT_EQ(sorted_lines(output_), sorted_lines(alone_));
}

TEST(BatchRankOptions, ThatContradict) {
  TANDEM_NEED_BINARY();
  const auto error = [](const std::string& options, const std::string& before = "") {
    const Outcome o = shell(before, "batch --mpi -m none.gguf -o /dev/null " + options + " 2>&1");
    EXPECT_EQ(o.exit_code, 2) << options;
    return o.out;
  };
  EXPECT_THAT(error("--shard 1/2"),
              HasSubstr("--shard divides the lines over runs that know nothing of each other, --mpi over"));
  EXPECT_THAT(error("--merge"), HasSubstr("leave out --mpi"));
  EXPECT_THAT(error("--expert-stats stats.json"),
              HasSubstr("--expert-stats records the experts of one process"));
  const std::string task =
      "SLURM_ARRAY_TASK_ID=1 SLURM_ARRAY_TASK_COUNT=2 SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_MAX=2";
  EXPECT_THAT(error("", task), HasSubstr("give --shard off, in one task"));
}

}  // namespace
}  // namespace tandem
