// The interface of ranks, on simulated ranks: all functions, speeds of links, failures.
#include "ranks/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <thread>

#include "base/error.h"
#include "ranks/launch.h"
#include "support/rank_checks.h"
#include "support/sim_ranks.h"
#include "tools/rank_setup.h"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using test::run_sim_ranks;
using test::SimRankEnd;
using test::SimRankFailure;
using test::SimRanks;
using testing::AllOf;
using testing::HasSubstr;

const std::vector<size_t> kShares = {3, 0, 5, 1};

// One call of each function, in which rank 0 and rank 3 of 4 talk to each other.
const std::map<std::string, std::function<void(SimRanks&)>> kFunctions = {
    {"send and receive",
     [](SimRanks& r) {
       const int other = (r.rank() + 2) % 4;
       r.send(other, 1, bytes_of("abc"));
       (void)r.receive(other, 1);
     }},
    {"all-reduce",
     [](SimRanks& r) {
       std::vector<float> values(5, 1.0f);
       r.all_reduce(values);
     }},
    {"all-gather",
     [](SimRanks& r) {
       std::vector<std::byte> all(9);
       r.all_gather(std::vector<std::byte>(kShares[static_cast<size_t>(r.rank())]), kShares, all);
     }},
    {"broadcast",
     [](SimRanks& r) {
       std::vector<std::byte> bytes(5);
       r.broadcast(2, bytes);
     }},
    {"barrier", [](SimRanks& r) { r.barrier(); }},
};

class RanksOf : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, RanksOf, testing::Values(1, 2, 3, 4, 8));

TEST_P(RanksOf, EveryFunctionGivesWhatItShould) {
  std::vector<std::string> problems(static_cast<size_t>(GetParam()), "did not run");
  const auto ends = run_sim_ranks(
      GetParam(), {}, [&](SimRanks& r) { problems[static_cast<size_t>(r.rank())] = test::check_ranks(r); });
  for (const std::string& problem : problems) EXPECT_EQ(problem, "");
  for (const SimRankEnd& end : ends) EXPECT_EQ(end.error, "");
}

TEST_P(RanksOf, TheirClocksFollowTheLinks) {
  const int n = GetParam();
  const size_t n_values = 1 << 20;
  const auto ends = run_sim_ranks(n, {.bytes_per_s = 1e9, .latency_s = 1e-5}, [&](SimRanks& r) {
    r.compute(0.5 * r.rank());
    std::vector<float> values(n_values);
    r.all_reduce(values);
  });
  const double bytes = 2.0 * (n - 1) / n * 4 * n_values;  // over each link
  for (const SimRankEnd& end : ends) {
    EXPECT_NEAR(static_cast<double>(end.n_bytes_sent), bytes, bytes / 1e5 + 1e-9);
    EXPECT_NEAR(end.seconds, 0.5 * (n - 1) + bytes / 1e9 + 2 * (n - 1) * 1e-5, 1e-5);
  }
}

TEST(Ranks, AMessageArrivesWhenItsLinkHasSentIt) {
  std::vector<double> arrivals;
  const auto ends = run_sim_ranks(2, {.bytes_per_s = 100, .latency_s = 0.25}, [&](SimRanks& r) {
    if (r.rank() == 0) {
      r.compute(1);
      for (int i = 0; i < 2; ++i) r.send(1, 0, std::vector<std::byte>(50));
      EXPECT_EQ(r.seconds(), 1);  // sending does not wait
    } else {
      for (int i = 0; i < 2; ++i) {
        (void)r.receive(0, 0);
        arrivals.push_back(r.seconds());
      }
    }
  });
  EXPECT_THAT(arrivals, testing::ElementsAre(1.75, 2.25));
  EXPECT_EQ(ends[0].n_bytes_sent, 100u);
  EXPECT_EQ(ends[1].n_bytes_sent, 0u);
}

// Every rank in turn, in every function: the others end with a sentence that names it, soon.
TEST(Ranks, ARankThatFailsHangsOrDiesIsNamed) {
  const std::pair<SimRankFailure::Kind, const char*> kinds[] = {{SimRankFailure::Kind::error, "fails"},
                                                                {SimRankFailure::Kind::hang, "hangs"},
                                                                {SimRankFailure::Kind::death, "has died"}};
  for (const auto& function : kFunctions) {
    const auto& call = function.second;
    for (const auto& [kind, text] : kinds) {
      for (int bad = 0; bad < 4; ++bad) {
        SCOPED_TRACE(function.first + ", rank " + std::to_string(bad) + " " + text);
        const auto start = std::chrono::steady_clock::now();
        const auto ends = run_sim_ranks(4, {.failures = {{bad, 0, kind}}, .silence = 20ms}, [&](SimRanks& r) {
          call(r);
          r.barrier();
        });
        EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
        for (const SimRankEnd& end : ends)
          EXPECT_THAT(end.error, AllOf(HasSubstr("rank " + std::to_string(bad)), HasSubstr(text)));
      }
    }
  }
}

TEST(Ranks, WaitingForEachOtherIsNoWaitForEver) {
  const auto mutual = run_sim_ranks(3, {}, [](SimRanks& r) { (void)r.receive((r.rank() + 1) % 3, 0); });
  EXPECT_THAT(
      mutual[1].error,
      HasSubstr(
          "wait for each other: rank 0 to receive from rank 1, rank 1 to receive from rank 2, rank 2 to"));
  const auto mixed = run_sim_ranks(2, {}, [](SimRanks& r) {
    if (r.rank() == 0) r.barrier();
    if (r.rank() == 1) (void)r.receive(kAnyRank, 0);
  });
  EXPECT_THAT(mixed[0].error, HasSubstr("rank 0 in a barrier, rank 1 to receive from any rank"));
  const auto ended = run_sim_ranks(2, {}, [](SimRanks& r) {
    if (r.rank() == 0) r.barrier();
  });
  EXPECT_THAT(ended[0].error, HasSubstr("rank 0 in a barrier, rank 1 has ended"));
  EXPECT_EQ(ended[1].error, "");
  // One that only looks now and then is not in the way, but does not wait either.
  const auto looking = run_sim_ranks(2, {}, [](SimRanks& r) {
    if (r.rank() == 1) return (void)r.receive(0, 0);
    for (int i = 0; i < 5; ++i) EXPECT_FALSE(r.try_receive(1, 0, 20ms));
    r.send(1, 0, {});
  });
  for (const SimRankEnd& end : looking) EXPECT_EQ(end.error, "");
}

TEST(Ranks, FunctionsThatDoNotFitTogetherAreReported) {
  const auto functions = run_sim_ranks(2, {}, [](SimRanks& r) {
    std::vector<float> values(3);
    if (r.rank() == 0) r.barrier();
    if (r.rank() == 1) r.all_reduce(values);
  });
  EXPECT_THAT(functions[0].error, HasSubstr("different functions"));
  const auto sizes = run_sim_ranks(2, {}, [](SimRanks& r) {
    std::vector<float> values(3 + static_cast<size_t>(r.rank()));
    r.all_reduce(values);
  });
  EXPECT_THAT(sizes[1].error, HasSubstr("another size"));
}

TEST(Ranks, OneThatGivesUpEndsAllWithItsSentence) {
  const auto ends = run_sim_ranks(3, {}, [](SimRanks& r) {
    if (r.rank() == 2) r.abort("no disk", 5);
    r.barrier();
  });
  for (const SimRankEnd& end : ends) EXPECT_EQ(end.error, "no disk");
}

TEST(Ranks, OneFailureIsReportedAsTheirOwn) {
  const auto with = [](const std::map<int, std::string>& failures) {
    const auto ends = run_sim_ranks(3, {}, [&](SimRanks& r) {
      std::optional<Error> failure;
      tools::attempt(failure, [&] {
        if (const auto f = failures.find(r.rank()); f != failures.end())
          throw Error(ErrorCode::bad_file, f->second);
      });
      tools::attempt(failure, [&] { EXPECT_FALSE(failures.contains(r.rank())); });
      tools::agree(r, failure);
    });
    for (const SimRankEnd& end : ends) EXPECT_EQ(end.error, ends[0].error);
    return ends[0].error;
  };
  EXPECT_EQ(with({}), "");
  EXPECT_EQ(with({{1, "no model"}}), "rank 1: no model");
  EXPECT_EQ(with({{2, "no model"}, {1, "no memory"}}), "rank 1: no memory");
  EXPECT_EQ(with({{0, "no model"}, {1, "no model"}, {2, "no model"}}), "no model");  // on each machine
}

TEST(Ranks, TheyMustHaveTheSameModel) {
  const auto with = [](const std::string& last) {
    return run_sim_ranks(3, {},
                         [&](SimRanks& r) { tools::agree_on(r, "the model", r.rank() == 2 ? last : "abc"); });
  };
  EXPECT_EQ(with("abc")[0].error, "");
  EXPECT_EQ(with("abd")[0].error, "rank 2: the model differs from that of rank 0");
}

TEST(Ranks, RanksOnOneMachineDivideIt) {
  run_sim_ranks(3, {}, [](SimRanks& r) {
    const tools::HostShare share = tools::host_share(r);
    EXPECT_EQ(share.n_hosts, 1);
    EXPECT_EQ(share.n_here, 3);
    EXPECT_EQ(share.number_here, r.rank());
    EXPECT_EQ(share.n_on_cores, 3);
  });
  EngineOptions options;
  options.devices.no_gpus = true;
  tools::share_host({.n_here = 8, .n_on_cores = 1000}, options);
  EXPECT_EQ(options.devices.n_threads, 1);
  options.devices.n_threads = 7;  // the user's
  tools::share_host({.n_here = 8, .n_on_cores = 1000}, options);
  EXPECT_EQ(options.devices.n_threads, 7);
}

class LaunchVariables : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : kNames) unsetenv(name);
  }
  void TearDown() override { SetUp(); }
  static constexpr const char* kNames[] = {
      "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE",
      "SLURM_PROCID",         "SLURM_STEP_NUM_TASKS"};
};

TEST_F(LaunchVariables, OfEachLauncher) {
  EXPECT_FALSE(Launch::from_environment());
  const std::pair<const char*, const char*> pairs[] = {{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
                                                       {"PMI_RANK", "PMI_SIZE"},
                                                       {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}};
  int rank = 1;
  for (const auto& [rank_name, size_name] : pairs) {  // each goes before those that are set already
    setenv(rank_name, std::to_string(++rank).c_str(), 1);
    setenv(size_name, "7", 1);
    const auto launch = Launch::from_environment();
    ASSERT_TRUE(launch);
    EXPECT_EQ(launch->rank, rank);
    EXPECT_EQ(launch->size, 7);
  }
  setenv("OMPI_COMM_WORLD_RANK", "7", 1);  // cannot be
  EXPECT_EQ(Launch::from_environment()->rank, 3);
  setenv("PMI_RANK", "two", 1);
  EXPECT_EQ(Launch::from_environment()->rank, 2);
}

}  // namespace
}  // namespace tandem
