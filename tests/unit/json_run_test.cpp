// tandem run --json: events on stdout, log probabilities in them, errors among them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/tiny_model.h"

namespace tandem {
namespace {

using test::Outcome;
using test::shell;
using testing::ElementsAre;
using testing::HasSubstr;

// Each line; fails on one that is not JSON.
std::vector<nlohmann::json> events_of(const std::string& out) {
  std::vector<nlohmann::json> events;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    events.push_back(nlohmann::json::parse(line, nullptr, false));
    EXPECT_TRUE(events.back().is_object()) << line;
  }
  return events;
}

// The kinds, repeated ones once.
std::vector<std::string> kinds(const std::vector<nlohmann::json>& events) {
  std::vector<std::string> names;
  for (const nlohmann::json& e : events) {
    const auto name = e["event"].get<std::string>();
    if (names.empty() || names.back() != name) names.push_back(name);
  }
  return names;
}

class RunJson : public testing::Test {
 protected:
  void SetUp() override {
    TANDEM_NEED_BINARY();
    test::tiny_llama().write(path_);
  }
  Outcome run(const std::string& arguments, const std::string& before = "") {
    return shell(before, "run -m " + path_ + " -t 1 --temp 0 -c 64 " + arguments);
  }

  test::TempDir directory_;
  std::string path_ = directory_.path("tiny.gguf");
};

TEST_F(RunJson, IsOneObjectPerLine) {
  const Outcome o = run("--json -p 'a b' -n 8 --ignore-eos 2>/dev/null");
  EXPECT_EQ(o.exit_code, 0);
  const auto events = events_of(o.out);
  EXPECT_THAT(kinds(events), ElementsAre("start", "text", "end"));
  EXPECT_EQ(events.front()["model"], path_);
  EXPECT_EQ(events.front()["n_ctx"], 64);
  std::string text;
  for (const nlohmann::json& e : events) text += e["event"] == "text" ? e["text"].get<std::string>() : "";
  const nlohmann::json& end = events.back();
  EXPECT_EQ(end["content"], text);
  EXPECT_EQ(end["reason"], "limit");
  EXPECT_EQ(end["n_generated"], 8);
  EXPECT_GE(end["n_prompt"], 2);
  for (const char* key : {"n_reused", "n_shifts", "prompt_s", "generate_s", "n_past", "n_ctx", "seed"})
    EXPECT_TRUE(end.contains(key)) << key;
  // The text is the one without --json.
  EXPECT_EQ(run("-p 'a b' -n 8 --ignore-eos --no-display-prompt 2>/dev/null").out, text + "\n");
}

TEST_F(RunJson, ReportsLogprobs) {
  const auto events = events_of(run("--json --logprobs 3 -p 'a b' -n 8 --ignore-eos 2>/dev/null").out);
  int n = 0;
  std::string bytes;
  for (const nlohmann::json& e : events) {
    if (e["event"] != "token") continue;
    ++n;
    EXPECT_LE(e["logprob"], 0);
    ASSERT_EQ(e["top_logprobs"].size(), 3u);
    EXPECT_GE(e["top_logprobs"][0]["logprob"], e["top_logprobs"][1]["logprob"]);
    for (const char* key : {"id", "token", "bytes"}) EXPECT_TRUE(e["top_logprobs"][2].contains(key)) << key;
    for (const int byte : e["bytes"]) bytes += static_cast<char>(byte);
  }
  EXPECT_EQ(n, 8);
  const auto none = events_of(run("--json --logprobs 0 -p 'a b' -n 2 --ignore-eos 2>/dev/null").out);
  EXPECT_THAT(kinds(none), testing::Contains("token"));
  for (const nlohmann::json& e : none) {
    EXPECT_TRUE(e["event"] != "token" || e["top_logprobs"].empty()) << e;
  }
}

TEST_F(RunJson, LogprobsNeedJson) {
  const Outcome o = run("--logprobs 3 -p 'a b' -n 1 2>&1");
  EXPECT_EQ(o.exit_code, 2);
  EXPECT_THAT(o.out, HasSubstr("--logprobs needs --json"));
  EXPECT_EQ(run("--json --logprobs -2 -p 'a b' -n 1 2>/dev/null").exit_code, 2);
}

TEST_F(RunJson, ErrorsAreEventsToo) {
  const std::pair<const char*, int> bad[] = {
      {"-p ''", 2}, {"-p 'a b' -m /nonexistent.gguf", 5}, {"-p hi -c 2", 2}};
  for (const auto& [arguments, code] : bad) {
    SCOPED_TRACE(arguments);
    const Outcome o = run(std::string("--json ") + arguments + " 2>/dev/null </dev/null");
    EXPECT_EQ(o.exit_code, code);
    const auto events = events_of(o.out);
    ASSERT_FALSE(events.empty());
    EXPECT_EQ(events.back()["event"], "error");
    EXPECT_EQ(events.back()["code"], code);
    EXPECT_FALSE(events.back()["message"].get<std::string>().empty());
  }
}

TEST_F(RunJson, OutputThatIsCutIsANote) {
  const Outcome o = run("--json -p 'a b' -n 3 --grammar 'root ::= [a-z ]{300}' 2>/dev/null");
  EXPECT_EQ(o.exit_code, 7);
  const auto events = events_of(o.out);
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back()["event"], "note");
  EXPECT_EQ(events.back()["text"], "the constrained output is incomplete: -n tokens were not enough");
}

TEST_F(RunJson, AnInterruptIsAnEndWithItsExitCode) {
  const std::string out = directory_.path("out");
  const Outcome o =
      run("--json -p 'a b' -n -1 --ignore-eos --context-shift >" + out +
          " 2>/dev/null & pid=$!; until grep -q text " + out +
          "; do sleep 0.05; done; kill -INT $pid; wait $pid; code=$?; cat " + out + "; exit $code");
  EXPECT_EQ(o.exit_code, 130);
  const auto events = events_of(o.out);
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back()["event"], "end");
  EXPECT_EQ(events.back()["reason"], "interrupted");
}

}  // namespace
}  // namespace tandem
