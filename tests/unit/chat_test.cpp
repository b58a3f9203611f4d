// tandem chat in scripts: stdin, stdout, exit codes. tests/faults/chat_terminal_test.cpp tests it on a
// terminal.
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
using testing::HasSubstr;
using testing::Not;

class Chat : public testing::Test {
 protected:
  void SetUp() override {
    TANDEM_NEED_BINARY();
    path_ = directory_.path("tiny.gguf");
    test::TinyModel model = test::tiny_llama();
    add_chat_template(model);
    model.write(path_);
  }
  Outcome chat(const std::string& arguments, const std::string& before = "") {
    return shell(before, "chat -m " + path_ + " --temp 0 -t 1 " + arguments);
  }

  test::TempDir directory_;
  std::string path_;
};

TEST_F(Chat, StdinIsTheMessageAndStdoutTheAnswer) {
  const Outcome o = chat("-n 8 2>/dev/null", "echo hello |");
  EXPECT_EQ(o.exit_code, 0);
  EXPECT_TRUE(o.out.ends_with("\n"));
  EXPECT_THAT(o.out, Not(HasSubstr("hello")));
  EXPECT_EQ(chat("-n 8 -p hello -st 2>/dev/null </dev/null").out, o.out);
  EXPECT_EQ(chat("-n 8 -p hello 2>/dev/null </dev/null").out, o.out);
  test::write_file(directory_.path("m.txt"), "hello\n");
  EXPECT_EQ(chat("-n 8 -f " + directory_.path("m.txt") + " 2>/dev/null </dev/null").out, o.out);
  EXPECT_NE(chat("-n 8 -sys 'be good' 2>/dev/null", "echo hello |").out, o.out);
  EXPECT_EQ(chat("-n 8 2>&1 >/dev/null --log-disable", "echo hello |").out, "");
}

TEST_F(Chat, JsonIsOneObjectPerLine) {
  const Outcome o = chat("-n 8 --ignore-eos --json 2>/dev/null", "echo hello |");
  EXPECT_EQ(o.exit_code, 0);
  std::istringstream lines(o.out);
  std::string text, last;
  std::vector<std::string> events;
  for (std::string line; std::getline(lines, line);) {
    const auto event = nlohmann::json::parse(line);
    if (events.empty() || event["event"] != events.back()) events.push_back(event["event"]);
    if (event["event"] == "text") text += event["text"].get<std::string>();
    if (event["event"] == "end") {
      EXPECT_EQ(event["reason"], "limit");
      EXPECT_EQ(event["n_generated"], 8);
      EXPECT_EQ(event["content"], text);
    }
  }
  EXPECT_EQ(events, (std::vector<std::string>{"start", "text", "end"}));
  const Outcome tokens = chat("-n 8 --ignore-eos --json --logprobs 2 2>/dev/null", "echo hello |");
  EXPECT_THAT(tokens.out, HasSubstr(R"({"event":"token","id":)"));
  EXPECT_THAT(tokens.out, HasSubstr(R"("top_logprobs":[{"id":)"));
  EXPECT_EQ(chat("--logprobs 2 -p hi 2>/dev/null </dev/null").exit_code, 2);
  const Outcome empty = chat("--json 2>/dev/null </dev/null");  // before the model is read
  EXPECT_EQ(empty.exit_code, 2);
  EXPECT_THAT(empty.out, HasSubstr(R"({"event":"error","message":"no message)"));
  const Outcome bad = chat("--json -p hi -c 4 2>/dev/null </dev/null");
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_THAT(bad.out, HasSubstr(R"("event":"error")"));
  EXPECT_THAT(bad.out, HasSubstr(R"("code":2)"));
}

// As run does, for a program that parses the answer.
TEST_F(Chat, ConstrainedOutputThatIsCutHasItsOwnExitCode) {
  const std::string schema = R"(-p hi -j '{"type":"string","minLength":3000}' )";
  const Outcome full = chat(schema + "-c 64 2>&1 </dev/null");
  EXPECT_EQ(full.exit_code, 7);
  EXPECT_THAT(full.out, HasSubstr("the constrained output is incomplete: the context is full"));
  const Outcome limited = chat(schema + "-n 3 2>&1 >/dev/null </dev/null");
  EXPECT_EQ(limited.exit_code, 7);
  EXPECT_THAT(limited.out, HasSubstr("the constrained output is incomplete: -n tokens were not enough"));
  const Outcome json = chat(schema + "-n 3 --json 2>/dev/null </dev/null");
  EXPECT_EQ(json.exit_code, 7);
  EXPECT_THAT(json.out, HasSubstr(R"({"event":"note","text":"the constrained output is incomplete: -n)"));
  EXPECT_EQ(chat("-p hi -n 3 --ignore-eos 2>/dev/null </dev/null").exit_code, 0);
  const std::string session = directory_.path("talk");
  EXPECT_EQ(chat(schema + "-n 3 --session " + session + " 2>/dev/null </dev/null").exit_code, 7);
  EXPECT_TRUE(std::filesystem::exists(session));
}

TEST_F(Chat, RejectsInvalidOptions) {
  const auto expect = [&](const std::string& arguments, int code, const char* why) {
    const Outcome o = chat(arguments + " 2>&1 </dev/null");
    EXPECT_EQ(o.exit_code, code) << o.out;
    EXPECT_THAT(o.out, HasSubstr(why));
  };
  expect("", 2, "no message");
  expect("-p hi -sys a -sysf b", 2, "-sysf");
  expect("-p hi -sysf " + directory_.path("none"), 5, "No such file");
  expect("-p hi --chat-template nope", 2, "not a file and not one of chatml, llama3");
  expect("-p hi --reasoning loud", 2, "--reasoning");
  expect("-p hi -c 100 -sys \"$(seq 1 100)\"", 2, "the system prompt");
  expect("-p \"$(seq 1 100)\"", 2, "the context is full");
  expect("-p hi --session " + path_, 2, "is the model in use");
  test::write_file(directory_.path("notes.txt"), "important");
  expect("-p hi --session " + directory_.path("notes.txt"), 2, "exists and is not a saved session");
  const auto with_template = [&](const std::string& text) {
    test::write_file(directory_.path("t.jinja"), text);
    return "-p hi --chat-template " + directory_.path("t.jinja");
  };
  expect(with_template("{% if %}"), 3, "t.jinja, line 1");
  expect(with_template("\n{{ raise_exception('not today') }}"), 3, "line 2: not today");
  expect(with_template("{% for i in range(99999999) %}{% endfor %}"), 3, "t.jinja, line 1");
  expect(with_template("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), 3, "recursion");
}

TEST_F(Chat, TemplatesByNameAndFromFiles) {
  EXPECT_EQ(chat("-n 4 -p hi --chat-template llama3 2>/dev/null </dev/null").exit_code, 0);
  test::write_file(directory_.path("t.jinja"), "<s>user:{{ messages[0].content }}</s><s>assistant:");
  const std::string own = chat("-n 4 -p hi 2>/dev/null </dev/null").out;
  EXPECT_EQ(chat("-n 4 -p hi --chat-template " + directory_.path("t.jinja") + " 2>/dev/null </dev/null").out,
            own);
  test::tiny_llama().write(path_);
  EXPECT_THAT(chat("-n 4 -p hi 2>&1 </dev/null").out, HasSubstr("no chat template, using chatml"));
}

TEST_F(Chat, ASessionContinuesFromRunToRun) {
  const std::string session = "--session " + directory_.path("talk") + " -n 4 --json 2>/dev/null </dev/null";
  EXPECT_THAT(chat("-p one " + session).out, HasSubstr(R"("n_reused":0)"));
  const Outcome second = chat("-p two -ctk f32 " + session);
  EXPECT_EQ(second.exit_code, 0);
  EXPECT_THAT(second.out, Not(HasSubstr(R"("n_reused":0)")));
}

TEST_F(Chat, AClosedPipeEndsItQuietly) {
  const Outcome o = shell("{ {", "chat -m " + path_ +
                                     " -c 60000 --ignore-eos -p hi --log-disable; echo $? >&3; } | "
                                     "head -c 3 >/dev/null; } 3>&1 2>&1 </dev/null");
  EXPECT_EQ(o.out, "5\n");
}

TEST_F(Chat, CtrlCInAScriptIsExitCode130) {
  const Outcome o =
      shell("", "chat -m " + path_ + " -c 60000 --ignore-eos -p hi </dev/null >" + directory_.path("out") +
                    " 2>/dev/null & pid=$!; sleep 0.7; kill -INT $pid; wait $pid");
  EXPECT_EQ(o.exit_code, 130);
  EXPECT_GT(std::filesystem::file_size(directory_.path("out")), 10u);
}

}  // namespace
}  // namespace tandem
