// The queue of tandem batch --mpi, on simulated ranks, with replicas that answer without a model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "support/gguf_bytes.h"
#include "support/sim_ranks.h"
#include "tools/batch/input.h"
#include "tools/batch/ranks.h"

namespace tandem::tools {
namespace {

using namespace std::chrono_literals;
using test::SimRankEnd;
using test::SimRanks;
using testing::HasSubstr;

// Answers each line with its text, n_parallel at once, in another order than they came.
class Parrot {
 public:
  Parrot(int n_parallel, std::chrono::milliseconds step) : n_parallel_(n_parallel), step_(step) {}

  void answer(LineQueue& queue) {
    for (bool at_end = false;;) {
      InputLine line;
      while (!at_end && open_.size() < static_cast<size_t>(n_parallel_)) {
        const auto wait = open_.empty() ? LineQueue::Wait::yes : LineQueue::Wait::no;
        const auto result = queue.next(line, wait, n_parallel_ - static_cast<int64_t>(open_.size()));
        at_end = result == LineQueue::Result::end;
        if (result != LineQueue::Result::line) break;
        open_.push_back(line);
      }
      if (open_.empty() && at_end) return;
      if (open_.empty()) continue;
      std::this_thread::sleep_for(step_);
      line = open_.back();
      open_.pop_back();
      ++report.n_lines;
      report.stats.n_generated += 3;
      const bool is_bad = line.too_long || line.text == "bad";
      queue.answer({line.index,
                    "{\"index\":" + std::to_string(line.index) + ",\"text\":\"" + line.text + "\"}",
                    is_bad ? "is bad" : "", 3});
    }
  }

  RankReport report;

 private:
  int n_parallel_;
  std::chrono::milliseconds step_;
  std::vector<InputLine> open_;
};

class BatchQueue : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    options_.input = directory_.path("in");
    options_.output = directory_.path("out");
  }
  void write_lines(int n) {
    std::string text;
    for (int i = 1; i <= n; ++i) text += i % 5 == 0 ? "\n" : "line " + std::to_string(i) + "\n";
    test::write_file(options_.input, text);
  }
  // The answers by number; fails if one is there twice.
  std::map<int64_t, std::string> answers() const {
    std::map<int64_t, std::string> all;
    std::ifstream file(options_.output);
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line);
      EXPECT_TRUE(all.emplace(json["index"].get<int64_t>(), json["text"].get<std::string>()).second) << line;
    }
    return all;
  }
  void expect_all(int n) const {
    std::map<int64_t, std::string> expected;
    for (int i = 1; i <= n; ++i) {
      if (i % 5 != 0) expected[i] = "line " + std::to_string(i);
    }
    EXPECT_EQ(answers(), expected);
  }

  // Each rank calls `work` for its queue.
  using Work = std::function<void(SimRanks& ranks, Parrot& parrot, LineQueue& queue)>;
  std::vector<SimRankEnd> run(int n_ranks, int n_parallel, const Work& work, test::SimRankOptions sim = {}) {
    return run_sim_ranks(n_ranks, sim, [&](SimRanks& ranks) {
      Parrot parrot(n_parallel, ranks.rank() == 1 ? slow_ : step_);
      if (ranks.rank() > 0) {
        RemoteQueue queue(ranks);
        work(ranks, parrot, queue);
        return queue.report(parrot.report);
      }
      const BatchInput input(options_.input, "in");
      AnswerFile file(options_.output);
      FileQueue files(options_, input.get(), file);
      files.start();
      SharedQueue queue(ranks, files);
      work(ranks, parrot, queue.local());
      reports_ = queue.finish(parrot.report);
      EXPECT_EQ(queue.n_open(), 0);
    });
  }
  std::vector<SimRankEnd> run(int n_ranks, int n_parallel) {
    return run(n_ranks, n_parallel,
               [](SimRanks&, Parrot& parrot, LineQueue& queue) { parrot.answer(queue); });
  }
  int64_t n_reported() const {
    int64_t n = 0;
    for (const RankReport& r : reports_) n += r.n_lines;
    return n;
  }

  test::TempDir directory_;
  BatchOptions options_;
  std::vector<RankReport> reports_;
  std::chrono::milliseconds slow_{0}, step_{0};  // of a line, on rank 1 and on the others
};
INSTANTIATE_TEST_SUITE_P(Ranks, BatchQueue, testing::Values(1, 2, 3, 4, 8));

TEST_P(BatchQueue, AnswersEachLineOnce) {
  for (const int n_parallel : {1, 3, 16}) {
    for (const int n : {0, 1, 7, 500}) {
      SCOPED_TRACE(std::to_string(n) + " lines, " + std::to_string(n_parallel) + " at once");
      write_lines(n);
      std::remove(options_.output.c_str());
      for (const SimRankEnd& end : run(GetParam(), n_parallel)) EXPECT_EQ(end.error, "");
      expect_all(n);
      EXPECT_EQ(n_reported(), n - n / 5);
      for (const SimRankEnd& end : run(GetParam(), n_parallel))
        EXPECT_EQ(end.error, "");  // nothing is left to do
      EXPECT_EQ(n_reported(), 0);
    }
  }
}

TEST_F(BatchQueue, ASlowRankAnswersLess) {
  write_lines(200);
  slow_ = 30ms;
  run(3, 1, [](SimRanks& ranks, Parrot& parrot, LineQueue& queue) {
    if (ranks.rank() == 0) std::this_thread::sleep_for(100ms);  // so that the others come first
    parrot.answer(queue);
  });
  expect_all(200);
  EXPECT_GT(reports_[1].n_lines, 0);
  EXPECT_LT(reports_[1].n_lines * 2, reports_[2].n_lines);
}

TEST_F(BatchQueue, ARankThatDiesOrFailsEndsAll) {
  write_lines(300);
  slow_ = step_ = 1ms;
  for (const auto kind : {test::SimRankFailure::Kind::death, test::SimRankFailure::Kind::error}) {
    std::remove(options_.output.c_str());
    const auto work = [](SimRanks&, Parrot& parrot, LineQueue& queue) { parrot.answer(queue); };
    for (const SimRankEnd& end : run(3, 2, work, {.failures = {{2, 9, kind}}}))
      EXPECT_THAT(end.error, HasSubstr("rank 2"));
    const auto before = answers();
    for (const SimRankEnd& end : run(3, 2)) EXPECT_EQ(end.error, "");
    expect_all(300);
    EXPECT_EQ(n_reported() + static_cast<int64_t>(before.size()), 240);
  }
}

// What fails on rank 0's thread is known to all.
TEST_F(BatchQueue, AnswersOfAnotherInputEndAll) {
  test::write_file(options_.input, "{\"id\": 1}\n{\"id\": 2}\n");
  test::write_file(options_.output, "{\"index\":2,\"id\":7,\"text\":\"\"}\n");
  const auto ends = run(2, 1, [](SimRanks& ranks, Parrot& parrot, LineQueue& queue) {
    if (ranks.rank() == 0) {
      for (int i = 0; i < 1000; ++i) {  // the replica of rank 0 is busy while the other asks
        std::this_thread::sleep_for(1ms);
        queue.show_progress(0);
      }
    }
    parrot.answer(queue);
  });
  for (const SimRankEnd& end : ends) EXPECT_THAT(end.error, HasSubstr("different ids"));
}

// A replica of rank 0 that fails leaves no thread behind.
TEST_F(BatchQueue, ReplicasThatFailEndAll) {
  write_lines(50);
  for (int bad = 0; bad < 3; ++bad) {
    std::remove(options_.output.c_str());
    const auto ends = run(3, 2, [bad](SimRanks& ranks, Parrot& parrot, LineQueue& queue) {
      if (ranks.rank() == bad) throw Error(ErrorCode::numeric, "NaN of rank " + std::to_string(bad));
      parrot.answer(queue);
      ranks.barrier();
    });
    for (const SimRankEnd& end : ends) EXPECT_EQ(end.error, "NaN of rank " + std::to_string(bad));
  }
}

}  // namespace
}  // namespace tandem::tools
