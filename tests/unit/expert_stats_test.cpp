// --expert-stats and --expert-trace: files that read back, clear lines for wrong ones, and warm starts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/text_input.h"
#include "gguf/file.h"
#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/terminal.h"
#include "support/tiny_model.h"
#include "tools/expert_stats.h"

namespace tandem::tools {
namespace {

using test::Outcome;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

Hparams mixture() {
  Hparams h;
  h.architecture = "llama";
  h.n_layer = 4;
  h.n_embd = 64;
  h.n_expert = 6;
  h.n_expert_used = 2;
  return h;
}

class ExpertStatsFile : public testing::Test {
 protected:
  std::string path() { return directory_.path("stats.json"); }
  void write(const std::string& text) { std::ofstream(path(), std::ios::binary) << text; }
  std::string error(ErrorCode code) {
    try {
      read_expert_stats(path(), mixture());
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), code) << e.what();
      EXPECT_THAT(e.what(), HasSubstr(path()));
      return e.what();
    }
    return "no error";
  }
  test::TempDir directory_;
};

TEST_F(ExpertStatsFile, ReadsBack) {
  EXPECT_TRUE(read_expert_stats(path(), mixture()).counts.empty());
  ExpertUse use;
  use.counts[1] = {1, 0, 7, 0, 0, 3};
  use.counts[3] = {0, 0, 0, 0, 0, 1ull << 40};
  write_expert_stats(path(), mixture(), use);
  EXPECT_EQ(read_expert_stats(path(), mixture()).counts, use.counts);
}

TEST_F(ExpertStatsFile, OfAnotherModelIsRefused) {
  Hparams other = mixture();
  other.n_expert_used = 3;
  write_expert_stats(path(), other, {});
  EXPECT_THAT(error(ErrorCode::usage), HasSubstr("of another model"));
}

TEST_F(ExpertStatsFile, WhatIsNoneIsRefused) {
  const std::string start =
      R"({"kind": "tandem expert statistics", "model": {"architecture": "llama", "n_layer": 4,)"
      R"( "n_embd": 64, "n_expert": 6, "n_expert_used": 2}, "layers": )";
  for (const char* text :
       {"GGUF", "{}", "[]", "3", R"({"kind": 3})", R"({"kind": "tandem expert statistics"})"}) {
    write(text);
    error(ErrorCode::bad_file);
  }
  for (const char* layers :
       {"3", "[]", R"({"4": [0,0,0,0,0,0]})", R"({"-1": [0,0,0,0,0,0]})", R"({"": [0,0,0,0,0,0]})",
        R"({"99999999999": [0,0,0,0,0,0]})", R"({"1": [0,0,0]})", R"({"1": [0,0,0,0,0,-1]})",
        R"({"1": [0,0,0,0,0,0.5]})", R"({"1": 5})"}) {
    write(start + layers + "}");
    EXPECT_NE(error(ErrorCode::bad_file), "no error") << layers;
  }
  write(start + R"({"1": [0,0,0,0,0,18446744073709551615]}})");
  EXPECT_LT(read_expert_stats(path(), mixture()).counts[1][5], uint64_t{1} << 50);
}

class ExpertsCommand : public testing::Test {
 protected:
  void SetUp() override {
    TANDEM_NEED_BINARY();
    test::TinyShape shape;
    shape.n_layer = 8;
    shape.n_expert = 16;
    shape.n_expert_used = 2;
    test::TinyModel model = test::tiny_llama(shape);
    add_chat_template(model);
    model.write(path_);
    test::tiny_llama({}).write(directory_.path("dense.gguf"));
    const GgufFile file(path_);
    half_bytes_ = std::to_string(file.n_tensor_bytes() / 2);
    half_ = " --max-ram " + half_bytes_ + " ";
  }
  Outcome tandem(const std::string& command, const std::string& arguments) {
    return test::shell("XDG_CACHE_HOME=" + directory_.path("cache"),
                       command + " -m " + path_ + " -c 64 -t 1 -dev none " + arguments);
  }
  Outcome run(const std::string& arguments) { return tandem("run", "-p 'a b' -n 20 -s 1 " + arguments); }

  test::TempDir directory_;
  std::string path_ = directory_.path("model.gguf"), half_, half_bytes_;
};

TEST_F(ExpertsCommand, TheSameTextFromHalfOfTheMemory) {
  const Outcome whole = run("2>/dev/null");
  ASSERT_EQ(whole.exit_code, 0);
  const Outcome half = run(half_ + "2>/dev/null");
  EXPECT_EQ(half.exit_code, 0);
  EXPECT_EQ(half.out, whole.out);
  EXPECT_THAT(run(half_ + "2>&1 >/dev/null").out, AllOf(HasSubstr("steps read the experts that they choose"),
                                                        HasSubstr("Zipf's law with exponent 0.7")));
  EXPECT_THAT(run(half_ + "--explain 2>&1 >/dev/null").out, HasSubstr("chosen experts: "));
}

TEST_F(ExpertsCommand, StatisticsAreRecordedAndUsed) {
  const std::string stats = " --expert-stats " + directory_.path("stats.json") + " ";
  const Outcome whole = run("2>/dev/null");
  EXPECT_THAT(run(stats + "2>&1 >/dev/null").out, HasSubstr("nothing to record"));
  EXPECT_EQ(run(half_ + stats + "2>/dev/null").out, whole.out);
  const auto total = [&] {
    const auto page = nlohmann::json::parse(read_text(directory_.path("stats.json")));
    uint64_t sum = 0;
    for (const auto& layer : page["layers"]) {
      for (const auto& count : layer) sum += count.get<uint64_t>();
    }
    return sum;
  };
  const uint64_t once = total();
  EXPECT_GT(once, 8u * 2u * 20u);
  EXPECT_EQ(run(half_ + stats + "2>/dev/null").out, whole.out);
  EXPECT_EQ(total(), 2 * once);
  EXPECT_THAT(tandem("plan", half_ + stats).out,
              AllOf(HasSubstr("experts"), ContainsRegex("as[ \n]recorded")));
  const auto page = nlohmann::json::parse(tandem("plan", "--json " + half_ + stats).out);
  EXPECT_TRUE(page["plans"][0]["chosen_experts"].get<bool>());
  EXPECT_GT(page["experts"]["hit_rate"], 0.3);
  EXPECT_LE(page["experts"]["hit_rate"], 1);

  const Outcome dense =
      test::shell("", "run -m " + directory_.path("dense.gguf") + " -p a -n 1 -dev none" + stats + "2>&1");
  EXPECT_EQ(dense.exit_code, 2);
  EXPECT_THAT(dense.out, HasSubstr("has no experts"));
}

// The experts of a text: two of each layer for each token; of a prompt that is one step, in the last layer of its last
// token alone.
TEST_F(ExpertsCommand, StatisticsTellWhatWasRead) {
  const auto end_of = [&](const std::string& arguments) {
    const std::string out = run("--json --ignore-eos " + arguments + " 2>/dev/null").out;
    return nlohmann::json::parse(out.substr(out.rfind('\n', out.size() - 2) + 1));
  };
  EXPECT_TRUE(end_of("").at("experts").is_null());
  const auto end = end_of(half_);
  const auto& answer = end["experts"]["answer"];
  EXPECT_EQ(answer["n_used"], 19 * 8 * 2);
  EXPECT_LE(answer["n_found"], answer["n_used"]);
  EXPECT_GT(answer["n_found"], 0);
  EXPECT_GT(answer["n_read"], 0);
  EXPECT_LE(answer["n_ahead_used"], answer["n_ahead"]);
  // What is found, or read because it was not; and wrong guesses.
  EXPECT_GE(answer["n_found"].get<int>() + answer["n_read"].get<int>(), 19 * 8 * 2);
  EXPECT_GE(answer["read_bytes"], answer["n_read"].get<uint64_t>() * 3 * 64 * 96 * 4);

  EXPECT_THAT(run(half_ + "--ignore-eos 2>&1 >/dev/null").out,
              ContainsRegex(
                  "experts: prompt [0-9]+% of [0-9]+ in memory, [0-9.]+ MiB read.*; answer [0-9]+% of 304 in "
                  "memory, [0-9.]+ MiB read \\([0-9.]+ [KM]iB a token\\)"));
  EXPECT_THAT(run("2>&1 >/dev/null").out, Not(HasSubstr("in memory, ")));
  EXPECT_THAT(tandem("chat", half_ + "-p a -n 9 -s 1 2>&1 >/dev/null").out, HasSubstr("; experts: prompt "));
  std::ofstream(directory_.path("in.jsonl")) << "{\"prompt\": \"a b\", \"n_predict\": 9}\n";
  EXPECT_THAT(tandem("batch", half_ + "-np 1 -i " + directory_.path("in.jsonl") + " 2>&1 >/dev/null").out,
              ContainsRegex("experts: [0-9]+% of [0-9]+ in memory, "));
}

TEST_F(ExpertsCommand, AChatRecordsStatistics) {
  const std::string path = directory_.path("stats.json"), stats = " --expert-stats " + path + " ";
  const auto chat = [&](const std::string& arguments) {
    return tandem("chat", "-p 'a b' -n 9 -s 1 " + half_ + arguments);
  };
  const Outcome plain = chat("2>/dev/null");
  ASSERT_EQ(plain.exit_code, 0);
  EXPECT_EQ(chat(stats + "2>/dev/null").out, plain.out);
  const std::string once = read_text(path);
  EXPECT_EQ(chat(stats + "2>/dev/null").out, plain.out);
  const auto first = nlohmann::json::parse(once), second = nlohmann::json::parse(read_text(path));
  ASSERT_EQ(first["layers"].size(), 8u);
  for (const auto& [layer, counts] : first["layers"].items()) {
    for (size_t e = 0; e < counts.size(); ++e)
      EXPECT_EQ(second["layers"][layer][e], 2 * counts[e].get<uint64_t>());
  }
  std::ofstream(path) << "{}";
  EXPECT_EQ(chat(stats + "2>/dev/null").exit_code, 3);
}

// The other model has no experts: the chat goes on, and what the first one has used is recorded once.
TEST_F(ExpertsCommand, AChatThatChangesItsModelRecordsTheFirst) {
  test::TinyModel dense = test::tiny_llama({});
  add_chat_template(dense);
  dense.write(directory_.path("dense.gguf"));
  const std::string path = directory_.path("stats.json");
  const auto counts = [&](bool changes) {
    std::filesystem::remove(path);
    test::Terminal t({test::binary_path(), "chat", "-m", path_, "-c", "128", "-t", "1", "-s", "1", "-n", "5",
                      "-dev", "none", "--max-ram", half_bytes_, "--expert-stats", path, "--no-sandbox"},
                     {.environment = {"TERM=xterm", "XDG_STATE_HOME=" + directory_.path("state")}});
    const std::string ready = "\033[?2004h";
    EXPECT_TRUE(t.wait_for(ready));
    t.type("hello\r");
    EXPECT_TRUE(t.wait_for("experts: ")) << t.seen();
    EXPECT_TRUE(t.wait_for(ready));
    if (changes) {
      t.type("/model " + directory_.path("dense.gguf") + "\r");
      EXPECT_TRUE(t.wait_for("goes on without")) << t.seen();
      EXPECT_TRUE(t.wait_for(ready));
      t.type("again\r");
      EXPECT_TRUE(t.wait_for("answer ")) << t.seen();
      EXPECT_TRUE(t.wait_for(ready));
    }
    t.type("\x04");
    EXPECT_EQ(t.wait_for_exit(), 0);
    return read_text(path);
  };
  const std::string expected = counts(false);
  EXPECT_THAT(expected, HasSubstr("tandem expert statistics"));
  EXPECT_EQ(counts(true), expected);
}

TEST_F(ExpertsCommand, ContradictionsHaveClearLines) {
  test::TinyShape shape;
  shape.n_layer = 4;
  shape.n_expert = 16;
  shape.n_expert_used = 2;
  test::tiny_llama(shape).write(directory_.path("other.gguf"));
  const std::string stats = " --expert-stats " + directory_.path("stats.json") + " ";
  ASSERT_EQ(run(half_ + stats + "2>/dev/null").exit_code, 0);
  for (const char* command : {"run", "chat", "plan"}) {
    const Outcome other =
        test::shell("", std::string(command) + " -m " + directory_.path("other.gguf") + " -dev none" + stats +
                            (command[0] == 'p' ? "" : "-p a -n 1 ") + "2>&1 >/dev/null");
    EXPECT_EQ(other.exit_code, 2) << command;
    EXPECT_THAT(other.out, AllOf(HasSubstr("stats.json: the expert statistics of another model: "),
                                 HasSubstr("\"n_layer\":8"), HasSubstr("\"n_layer\":4")));
  }
  // Less memory than a step needs, and no disk to read from.
  const Outcome little = run("--max-ram 50KiB 2>&1 >/dev/null");
  EXPECT_EQ(little.exit_code, 4);
  EXPECT_THAT(little.out, AllOf(HasSubstr("--max-ram"), HasSubstr("are needed at the least")));
  const Outcome off = run(half_ + "--disk-tier=off 2>&1 >/dev/null");
  EXPECT_EQ(off.exit_code, 4);
  EXPECT_THAT(off.out, AllOf(HasSubstr("--max-ram"), HasSubstr("are needed at the least")));
}

TEST_F(ExpertsCommand, TheTraceHasEveryChoice) {
  const std::string trace = directory_.path("trace.txt");
  ASSERT_EQ(run(half_ + "--expert-trace " + trace + " 2>/dev/null").exit_code, 0);
  std::istringstream lines(read_text(trace));
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(nlohmann::json::parse(line)["kind"], "tandem expert trace");
  int n = 0, n_guessed = 0;
  while (std::getline(lines, line)) {
    n_guessed += line.find(" > ") != std::string::npos;
    std::istringstream words(line);
    int layer, expert, n_tokens, sum = 0;
    char colon;
    words >> layer;
    EXPECT_EQ(layer, n++ % 8);
    while (words >> expert >> colon >> n_tokens) sum += n_tokens;
    if (n > 8) {
      EXPECT_EQ(sum, 2);
    }
  }
  EXPECT_EQ(n, 20 * 8);
  EXPECT_EQ(n_guessed, 20 * 7);  // the last layer has no next one
}

}  // namespace
}  // namespace tandem::tools
