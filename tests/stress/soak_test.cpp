// A long chat and a long batch: memory and file descriptors stay flat, and the texts are those of a fresh process.
//
// Short by default; with TANDEM_STRESS=all, a million tokens over 10,000 turns and 100,000 lines (`make soak`).
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "stress/running.h"
#include "stress/spawn.h"
#include "support/chat_terminal.h"
#include "support/text_files.h"

namespace tandem::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

bool is_long() {
  const char* value = getenv("TANDEM_STRESS");
  return value && std::string_view(value) == "all";
}

// What a process holds, over its life.
class Usage {
 public:
  explicit Usage(pid_t process) : folder_("/proc/" + std::to_string(process)) {}

  // False if the process has ended.
  bool sample() {
    std::ifstream status(folder_ / "status");
    double kib = 0;
    for (std::string word; status >> word && word != "VmRSS:";) {}
    if (!(status >> kib)) return false;
    std::error_code error;
    int n = 0;
    for (fs::directory_iterator it(folder_ / "fd", error), end; !error && it != end; it.increment(error)) ++n;
    if (error) return false;
    kib_.push_back(kib);
    n_files_.push_back(n);
    return true;
  }
  size_t n_samples() const { return kib_.size(); }

  // The mean of the n-th tenth of the samples, from 1, in KiB.
  double memory(size_t tenth) const { return mean(kib_, tenth); }
  double files(size_t tenth) const { return mean(n_files_, tenth); }

  // Compares the second tenth with the last.
  void expect_flat(double growth) const {
    ASSERT_GE(n_samples(), 20u);
    EXPECT_LE(memory(10), memory(2) * (1 + growth)) << "KiB";
    EXPECT_LE(files(10), files(2)) << "file descriptors";
  }
  std::string row() const {
    std::string text = "memory in KiB, tenth by tenth:";
    for (size_t tenth = 1; tenth <= 10; ++tenth) text += " " + std::to_string(std::lround(memory(tenth)));
    return text + "; files " + std::to_string(std::lround(files(2))) + ", " +
           std::to_string(std::lround(files(10)));
  }

 private:
  static double mean(const std::vector<double>& values, size_t tenth) {
    const size_t begin = values.size() * (tenth - 1) / 10, end = values.size() * tenth / 10;
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += values[i];
    return sum / static_cast<double>(std::max<size_t>(1, end - begin));
  }

  fs::path folder_;
  std::vector<double> kib_, n_files_;
};

class Soak : public ChatTerminal {
 protected:
  size_t below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }
  std::string words() {
    std::string text;
    for (size_t i = 0; i <= below(6); ++i)
      text += std::string(i > 0, ' ') + static_cast<char>('a' + below(26));
    return text;
  }

  std::mt19937 random_{1};
};

class ChatSoak : public Soak {
 protected:
  struct Plan {
    size_t n_turns, n_predict, n_checks;
    double growth;  // of the memory, that is allowed
  };
  const Plan plan_ = is_long() ? Plan{10000, 105, 50, 0.01} : Plan{80, 20, 3, 0.5};
  static constexpr size_t kTurnsOfAConversation = 40;

  std::vector<std::string> arguments() const {
    return {"-c",
            "256",
            "--context-shift",
            "--exact-shift",
            "--ignore-eos",
            "--temp",
            "1",
            "-n",
            std::to_string(plan_.n_predict)};
  }

  void send(const std::string& line) {
    terminal_->type(line + kEnter);
    ASSERT_TRUE(terminal_->wait_for(kReady, 120000)) << "after '" << line << "':\n" << terminal_->seen();
  }
  // A message, or another command that makes an answer.
  void turn(const std::string& line) {
    ASSERT_NO_FATAL_FAILURE(send(line));
    const std::string& seen = terminal_->seen();
    const size_t at = seen.rfind("answer ");
    ASSERT_NE(at, seen.npos) << "no answer to '" << line << "':\n" << seen;
    n_tokens_ += strtoul(seen.c_str() + at + 7, nullptr, 10);
    ++n_turns_;
    if (seen.find("the context was full") != seen.npos) ++n_full_;
    ASSERT_TRUE(usage_->sample());
  }

  // The turn, and the same turn in a fresh process that continues what was saved before it. Their saved conversations, text
  // and cache, must be the same bytes.
  void checked_turn(const std::string& message) {
    const std::string before = directory_.path("before.bin"), after = directory_.path("after.bin");
    ASSERT_NO_FATAL_FAILURE(send("/save! " + before));
    ASSERT_NO_FATAL_FAILURE(turn(message));
    ASSERT_NO_FATAL_FAILURE(send("/save! " + after));
    Job job{.arguments = command(arguments()), .input = message};
    job.arguments.erase(job.arguments.begin());
    job.arguments.insert(job.arguments.end(), {"--session", before});
    const Ended fresh = JobFolder(directory_.path("fresh")).run(job);
    ASSERT_EQ(fresh.exit_code, 0) << fresh.err;
    EXPECT_TRUE(file_bytes(before) == file_bytes(after)) << "turn " << n_turns_ << ": the answer differs";
    ++n_checked_;
  }

  void other_command() {
    switch (below(6)) {
      case 0: ASSERT_NO_FATAL_FAILURE(send("/undo")); return turn(words());
      case 1: return turn("/regen");
      case 2:
        ASSERT_NO_FATAL_FAILURE(send("/save! " + directory_.path("kept.bin")));
        ASSERT_NO_FATAL_FAILURE(turn(words()));
        ASSERT_NO_FATAL_FAILURE(send("/load " + directory_.path("kept.bin")));
        return turn(words());
      case 3: return send("/system " + words());
      case 4: return send("/stats");
      default: return send("/set temp 0." + std::to_string(1 + below(9)));
    }
  }

  std::unique_ptr<Terminal> terminal_;
  std::optional<Usage> usage_;
  size_t n_turns_ = 0, n_tokens_ = 0, n_full_ = 0, n_checked_ = 0;
};

TEST_F(ChatSoak, MemoryFilesAndTextsStayTheSame) {
  terminal_ = start(arguments());
  ASSERT_TRUE(terminal_->wait_for(kReady)) << terminal_->seen();
  usage_.emplace(terminal_->child());
  for (size_t next_check = 5, next_clear = kTurnsOfAConversation; n_turns_ < plan_.n_turns;) {
    if (n_turns_ >= next_clear) {
      ASSERT_NO_FATAL_FAILURE(send("/clear"));
      next_clear += kTurnsOfAConversation;
    }
    if (n_turns_ >= next_check) {
      ASSERT_NO_FATAL_FAILURE(send("/set temp 1"));  // as in the fresh process
      ASSERT_NO_FATAL_FAILURE(checked_turn(words()));
      next_check += plan_.n_turns / plan_.n_checks / 2 + below(plan_.n_turns / plan_.n_checks / 2);
    } else if (below(5) == 0 && n_turns_ > 0) {
      ASSERT_NO_FATAL_FAILURE(other_command());
    } else {
      ASSERT_NO_FATAL_FAILURE(turn(words()));
    }
  }
  printf(
      "chat: %zu turns, %zu tokens; the context was full in %zu turns; %zu turns compared with a fresh "
      "process\n",
      n_turns_, n_tokens_, n_full_, n_checked_);
  printf("chat: %s\n", usage_->row().c_str());
  EXPECT_GT(n_full_, 0u);
  EXPECT_GE(n_checked_, plan_.n_checks);
  usage_->expect_flat(plan_.growth);
  terminal_->type("/exit" + kEnter);
  EXPECT_EQ(terminal_->wait_for_exit(), 0);
}

class BatchSoak : public Soak {
 protected:
  struct Plan {
    size_t n_lines, n_kills, n_checks;
    double growth;  // of the memory, that is allowed
  };
  const Plan plan_ = is_long() ? Plan{100000, 50, 50, 0.01} : Plan{2000, 4, 3, 0.5};

  std::vector<std::string> batch(const std::string& input, const std::string& output) const {
    return {"batch", "-m", path_, "-t",   "1",  "--temp", "0",  "-n",  "4",
            "-np",   "16", "-c",  "1024", "-i", input,    "-o", output};
  }
  size_t n_bytes() const {
    std::error_code none;
    const uintmax_t n = fs::file_size(output_, none);
    return none ? 0 : n;
  }
  size_t n_answers() const { return static_cast<size_t>(std::ranges::count(file_bytes(output_), '\n')); }

  std::string input_ = directory_.path("in.jsonl"), output_ = directory_.path("out.jsonl");
};

std::map<int64_t, Json> answers_in(const std::string& path) {
  std::map<int64_t, Json> all;
  std::istringstream lines(file_bytes(path));
  for (std::string line; std::getline(lines, line);) {
    const Json answer = Json::parse(line);
    EXPECT_TRUE(all.emplace(answer.at("index").get<int64_t>(), answer).second) << "twice: " << line;
  }
  return all;
}

TEST_F(BatchSoak, EveryAnswerOnceWhateverIsKilled) {
  std::vector<std::string> lines;
  std::string text;
  for (size_t i = 0; i < plan_.n_lines; ++i) {
    lines.push_back(Json{{"prompt", words()}, {"id", i}}.dump() + "\n");
    text += lines.back();
  }
  write_file(input_, text);

  const size_t bytes_a_line = Json{{"index", 50000},  {"id", 50000},   {"text", "abcd"},
                                   {"stop", "limit"}, {"n_prompt", 4}, {"n_generated", 4}}
                                  .dump()
                                  .size();
  size_t n_killed = 0;
  for (size_t n_runs = 0; n_killed < plan_.n_kills && n_runs < 100;
       ++n_runs) {  // within the first half or so
    Running run(batch(input_, output_));
    const size_t end = n_bytes() + below(plan_.n_lines * bytes_a_line / plan_.n_kills);
    while (!run.ended() && n_bytes() <= end) std::this_thread::sleep_for(std::chrono::microseconds(300));
    const int code = run.end();
    ASSERT_TRUE(code == 128 + SIGKILL || code == 0) << code;
    if (code != 0) {
      ++n_killed;
    } else if (n_killed == 0) {  // this test had no processor in time
      fs::remove(output_);
    } else {
      break;
    }
  }
  const size_t n_before = n_answers(), begin = n_bytes();
  const size_t step = std::max<size_t>(1, (plan_.n_lines - n_before) * bytes_a_line / 400);
  Running last(batch(input_, output_));
  Usage usage(last.id());
  for (size_t next = begin + 1; !last.ended();) {
    if (n_bytes() >= next && usage.sample()) next = n_bytes() + step;
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
  ASSERT_EQ(last.end(), 0);

  const std::map<int64_t, Json> all = answers_in(output_);
  ASSERT_EQ(all.size(), plan_.n_lines);
  for (size_t i = 0; i < plan_.n_lines; ++i) ASSERT_EQ(all.at(static_cast<int64_t>(i) + 1)["id"], i);
  for (size_t check = 0; check < plan_.n_checks; ++check) {
    const size_t i = below(plan_.n_lines);
    write_file(directory_.path("one.jsonl"), lines[i]);
    const std::string one = directory_.path("one-out.jsonl");
    fs::remove(one);
    ASSERT_EQ(Running(batch(directory_.path("one.jsonl"), one)).wait(), 0);
    EXPECT_EQ(answers_in(one).at(1)["text"], all.at(static_cast<int64_t>(i) + 1)["text"]) << lines[i];
  }
  printf("batch: %zu lines, killed %zu times, %zu lines compared with a fresh process\n", plan_.n_lines,
         n_killed, plan_.n_checks);
  EXPECT_GT(n_killed, 0u);
  if (usage.n_samples() < 20) return;  // almost all was done
  printf("batch: the last process, %zu lines: %s\n", plan_.n_lines - n_before, usage.row().c_str());
  usage.expect_flat(plan_.growth);
}

}  // namespace
}  // namespace tandem::test
