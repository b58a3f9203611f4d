// Ranks by MPI, with mpirun on this machine: what tests/unit/ranks_test.cpp asks of simulated ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "support/mpi_run.h"
#include "support/process.h"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using test::MpiRun;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class MpiRanksOf : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { TANDEM_NEED_MPI(); }
};

std::string program() {
  return (std::filesystem::path(test::binary_path()).parent_path() / "mpi_ranks_program").string();
}

INSTANTIATE_TEST_SUITE_P(Sizes, MpiRanksOf, testing::Values(1, 2, 3, 4));

TEST_P(MpiRanksOf, EveryFunctionGivesWhatItShould) {
  // What is confined must do the same: large messages take other ways than small ones.
  for (const char* how : {"check", "confined"}) {
    MpiRun run(GetParam(), {program(), how});
    EXPECT_EQ(run.wait(), 0) << run.output();
    for (int rank = 0; rank < GetParam(); ++rank) {
      EXPECT_THAT(run.output(), HasSubstr("rank " + std::to_string(rank) + " of " +
                                          std::to_string(GetParam()) + ": all is well"));
    }
  }
}

class MpiRanksEnd : public testing::Test {
 protected:
  void SetUp() override { TANDEM_NEED_MPI(); }
};

TEST_F(MpiRanksEnd, WaitingForEachOtherIsNoWaitForEver) {
  MpiRun circle(3, {program(), "circle"}), mixed(2, {program(), "mixed"}), slow(2, {program(), "slow"});
  EXPECT_EQ(circle.wait(), 5);
  EXPECT_THAT(
      circle.output(),
      HasSubstr("ranks wait for each other: rank 0 to receive from rank 1, rank 1 to receive from rank "
                "2, rank 2 to receive from rank 0"));
  EXPECT_EQ(mixed.wait(), 5);
  EXPECT_THAT(mixed.output(), HasSubstr("rank 0 to receive from any rank, rank 1 in a barrier"));
  EXPECT_EQ(slow.wait(), 0) << slow.output();
}

TEST_F(MpiRanksEnd, OneThatGivesUpEndsAllWithItsSentence) {
  MpiRun run(3, {program(), "give up"});
  EXPECT_EQ(run.wait(), 6);
  EXPECT_THAT(run.output(), AllOf(HasSubstr("tandem: error: rank 1 on "), HasSubstr(" gives up")));
  EXPECT_TRUE(MpiRun::wait_until([&] { return run.left().empty(); }, 5s));
}

TEST_F(MpiRanksEnd, OneThatHangsIsNamed) {
  MpiRun run(3, {program(), "stop"});
  EXPECT_EQ(run.wait(), 5);
  EXPECT_THAT(run.output(), AllOf(HasSubstr("rank 1 on "), HasSubstr("has not answered for 10 s"),
                                  Not(HasSubstr("rank 2"))));
  EXPECT_TRUE(MpiRun::wait_until([&] { return run.left().empty(); }, 5s));
}

// What is missing is said in one sentence. A copy of the program stands for a build without MPI.
TEST(MpiMissing, IsSaid) {
  TANDEM_NEED_BINARY();
  namespace fs = std::filesystem;
  const test::TempDir directory;
  fs::create_directory(directory.path("bin"));
  const std::string copy = directory.path("bin/tandem");
  fs::create_hard_link(test::binary_path(), copy);
  const auto error = [&] { return test::shell(copy + " batch --mpi -m none.gguf 2>&1; exit $?; :", "").out; };
  EXPECT_THAT(error(), AllOf(HasSubstr("built without MPI: libtandem_mpi.so is not beside " + copy),
                             HasSubstr("libopenmpi-dev")));
  fs::create_directories(directory.path("lib/tandem"));
  test::write_file(directory.path("lib/tandem/libtandem_mpi.so"), "no library");
  EXPECT_THAT(error(), HasSubstr("the MPI library that tandem was built with is missing: "));
}

TEST_F(MpiRanksEnd, AnotherLauncherIsNoticed) {
  const auto o = test::shell("PMI_RANK=1 PMI_SIZE=4", "batch --mpi -m none.gguf 2>&1");
  EXPECT_EQ(o.exit_code, 5);
  EXPECT_THAT(o.out, HasSubstr("this is one of 4 processes, but Open MPI"));
}

}  // namespace
}  // namespace tandem
