// The batch command as a process: answers, reports of bad lines, and reruns after a kill or an interrupt.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cpu/isa.h"
#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/text_files.h"
#include "support/tiny_model.h"
#include "support/trained_model.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;
using test::file_bytes;
using test::lines_of;
using test::Outcome;
using test::shell;
using testing::ElementsAre;
using testing::HasSubstr;

class BatchCommand : public testing::Test {
 protected:
  void SetUp() override {
    TANDEM_NEED_BINARY();
    test::TinyModel tiny = test::tiny_llama();
    test::add_chat_template(tiny);
    tiny.write(model_);
  }

  // Greedy sampling on one thread, so that answers do not depend on rounding.
  Outcome batch(const std::string& arguments, const std::string& before = "") {
    return shell(before, "batch -m " + model_ + " -t 1 --temp 0 " + arguments);
  }
  // The answers by index. Fails on an incomplete or repeated line.
  std::map<int64_t, Json> answers() const { return parsed(file_bytes(output_)); }
  static std::map<int64_t, Json> parsed(const std::string& text) {
    std::map<int64_t, Json> all;
    for (const std::string& line : lines_of(text)) {
      const Json json = Json::parse(line);
      EXPECT_TRUE(all.emplace(json["index"].get<int64_t>(), json).second) << line;
    }
    return all;
  }
  void write_prompts(int n) {
    std::string text;
    for (int i = 1; i <= n; ++i) {
      text += Json{{"prompt", "a b c " + std::string(static_cast<size_t>(i % 7), 'd')},
                   {"id", "p" + std::to_string(i)}}
                  .dump() +
              "\n";
    }
    test::write_file(input_, text);
  }

  test::TempDir directory_;
  std::string model_ = directory_.path("tiny.gguf"), input_ = directory_.path("in.jsonl"),
              output_ = directory_.path("out.jsonl");
  std::string in_out_ = "-i " + input_ + " -o " + output_ + " ";
};

TEST_F(BatchCommand, AnswersEveryLine) {
  test::write_file(input_,
                   "{\"prompt\": \"a b\", \"id\": \"x\"}\r\n\n  \t\n{\"prompt\": \"b\", \"id\": "
                   "7.5}\n{\"prompt\": \"c\"}");
  const Outcome o = batch(in_out_ + "-n 6 -np 9 2>&1");
  EXPECT_EQ(o.exit_code, 0) << o.out;
  EXPECT_THAT(o.out, HasSubstr("3 answers in "));
  std::map<int64_t, Json> all = answers();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[1]["id"], "x");
  EXPECT_EQ(all[4]["id"], 7.5);
  EXPECT_FALSE(all[5].contains("id"));
  for (const auto& [index, json] : all) {
    EXPECT_TRUE(json["text"].is_string());
    EXPECT_LE(json["n_generated"], 6);
    EXPECT_GE(json["n_prompt"], 2);
    EXPECT_TRUE(json["stop"] == "limit" || json["stop"] == "eos") << json;
  }
  // The same through pipes, and as `tandem run` completes it.
  const Outcome piped = batch("-n 6 2>/dev/null", "cat " + input_ + " |");
  EXPECT_EQ(parsed(piped.out), all);
  const Outcome run =
      shell("", "run -m " + model_ + " -t 1 --temp 0 -n 6 -p 'a b' --no-display-prompt 2>/dev/null");
  EXPECT_EQ(all[1]["text"].get<std::string>() + "\n", run.out);
}

TEST_F(BatchCommand, ReportsLogprobsWhereTheyAreAskedFor) {
  test::write_file(input_, R"({"prompt": "a b", "logprobs": 2}
{"prompt": "a b"}
{"prompt": "a b", "logprobs": 0, "n_predict": 2}
{"prompt": "a b", "logprobs": 1, "n_predict": 0}
{"prompt": "a b", "logprobs": -2})");
  EXPECT_EQ(batch(in_out_ + "-n 6 -np 2 2>/dev/null").exit_code, 3);
  std::map<int64_t, Json> all = answers();
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all[1]["logprobs"].size(), all[1]["n_generated"]);
  for (const Json& token : all[1]["logprobs"]) {
    EXPECT_LE(token["logprob"], 0);
    ASSERT_EQ(token["top_logprobs"].size(), 2u);
    EXPECT_EQ(token["top_logprobs"][0]["id"], token["id"]);  // greedy
  }
  EXPECT_FALSE(all[2].contains("logprobs"));
  EXPECT_EQ(all[2]["text"], all[1]["text"]);
  EXPECT_EQ(all[3]["logprobs"][0]["top_logprobs"], Json::array());
  EXPECT_EQ(all[4]["logprobs"], Json::array());
  EXPECT_THAT(all[5]["error"], HasSubstr("\"logprobs\" is -2"));
  // The option is the default for all lines; the numbers are those of `tandem run --json`.
  const Outcome every = batch("-n 6 --logprobs 2 2>/dev/null", "head -n 2 " + input_ + " |");
  EXPECT_EQ(parsed(every.out)[2]["logprobs"], all[1]["logprobs"]);
  const Outcome run =
      shell("", "run -m " + model_ + " -t 1 --temp 0 -n 6 -p 'a b' --json --logprobs 2 2>/dev/null");
  size_t n = 0;
  for (const std::string& line : lines_of(run.out)) {
    Json event = Json::parse(line);
    if (event["event"] != "token") continue;
    event.erase("event");
    ASSERT_LT(n, all[1]["logprobs"].size());
    EXPECT_EQ(event["id"], all[1]["logprobs"][n++]["id"]);
  }
  EXPECT_EQ(n, all[1]["logprobs"].size());
}

TEST_F(BatchCommand, NothingToAnswer) {
  for (const char* text : {"", "\n\n", " \r\n"}) {
    test::write_file(input_, text);
    const Outcome o = batch(in_out_ + "2>&1");
    EXPECT_EQ(o.exit_code, 0);
    EXPECT_THAT(o.out, HasSubstr(": nothing to answer"));
    EXPECT_EQ(file_bytes(output_), "");
  }
}

TEST_F(BatchCommand, ABadLineIsNamedOnce) {
  test::write_file(input_, "\n{\"prompt\": \"a\"}\n{\"prompt\": }\n");
  const Outcome o = batch(in_out_ + "2>&1");
  EXPECT_THAT(o.out, HasSubstr("line 3: invalid JSON: column 12: "));
  EXPECT_THAT(o.out, HasSubstr("1 answer and 1 bad line in "));
}

TEST_F(BatchCommand, ReportsBadLinesAndAnswersTheOthers) {
  const std::pair<const char*, const char*> bad[] = {
      {"nonsense", "invalid JSON"},
      {"[1]", "not a JSON object"},
      {"{}", "found neither \"prompt\" nor"},
      {R"({"prompt": 5})", "\"prompt\" is 5, needed a string"},
      {R"({"prompt": "a", "messages": []})", "only one of"},
      {R"({"messages": "a"})", "needed a list of objects"},
      {R"({"prompt": "a", "id": [1]})", "\"id\" is [1], needed"},
      {R"({"prompt": "a", "temperature": "hot"})", "\"temperature\" is \"hot\", needed a number"},
      {R"({"prompt": "a", "max_tokens": 1.5})", "\"max_tokens\" is 1.5"},
      {R"({"prompt": "a", "n_predict": -2})", "\"n_predict\" is -2"},
      {R"({"prompt": "a", "top_k": 99999999999})", "\"top_k\" is 99999999999"},
      {R"({"prompt": "a", "seed": -7})", "\"seed\" is -7"},
      {R"({"prompt": "a", "stop": [1]})", "\"stop\" is [1]"},
      {R"({"prompt": "a", "grammar": "root ::= ("})", "grammar"},
      {R"({"prompt": "a", "json_schema": {"not": {}}})", "json_schema"},
      {R"({"prompt": "a", "grammar": "root ::= \"a\"", "json_schema": {}})", "only one of"},
      {"{\"prompt\": \"\xff\"}", "invalid JSON"},
  };
  std::string text;
  for (const auto& [line, says] : bad) text += std::string(line) + "\n{\"prompt\": \"a\"}\n";
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  text += "{\"prompt\": " + deep + "}\n{\"prompt\": \"a\", \"json_schema\": " + deep + "}\n";
  text += Json{{"prompt", std::string(5000, 'a')}, {"id", 3}}.dump() + "\n";
  test::write_file(input_, text);
  const Outcome o = batch(in_out_ + "-n 3 -np 3 2>&1");
  EXPECT_EQ(o.exit_code, 3);
  std::map<int64_t, Json> all = answers();
  EXPECT_EQ(all.size(), 2 * std::size(bad) + 3);
  for (size_t i = 0; i < std::size(bad); ++i) {
    const auto index = static_cast<int64_t>(2 * i + 1);
    EXPECT_THAT(all[index]["error"].get<std::string>(), HasSubstr(bad[i].second)) << bad[i].first;
    EXPECT_TRUE(all[index + 1].contains("text"));
    EXPECT_THAT(o.out, HasSubstr("line " + std::to_string(index) + ": "));
  }
  EXPECT_THAT(all.rbegin()->second["error"].get<std::string>(),
              HasSubstr("the context of a sequence holds 128"));
  EXPECT_EQ(all.rbegin()->second["id"], 3);
  // The errors were reported. A rerun has nothing to do, and succeeds.
  const std::string before = file_bytes(output_);
  const Outcome again = batch(in_out_ + "-n 3 2>&1");
  EXPECT_EQ(again.exit_code, 0);
  EXPECT_THAT(again.out, HasSubstr("20 of them with an error"));
  EXPECT_EQ(file_bytes(output_), before);
}

TEST_F(BatchCommand, LinesHaveTheirOwnOptions) {
  test::write_file(input_, R"({"prompt": "a b", "max_tokens": 2}
{"prompt": "a b", "n_predict": 0}
{"prompt": "a b", "temperature": 1.5, "seed": 5}
{"prompt": "a b", "temperature": 1.5, "seed": 5, "top_k": null}
{"prompt": "a b", "grammar": "root ::= \"yes\" | \"no\""}
{"prompt": "a b", "json_schema": {"enum": ["left", "right"]}}
{"messages": [{"role": "user", "content": "a b"}], "surprise": 1}
{"prompt": "a b", "temperature": 1.5}
{"prompt": "a b", "temperature": 1.5, "seed": 107}
)");
  const Outcome o = batch(in_out_ + "-n 9 -s 100 2>&1");
  EXPECT_EQ(o.exit_code, 0) << o.out;
  std::map<int64_t, Json> all = answers();
  EXPECT_EQ(all[1]["n_generated"], 2);
  EXPECT_EQ(all[2]["n_generated"], 0);
  EXPECT_EQ(all[2]["stop"], "limit");
  EXPECT_EQ(all[3]["text"], all[4]["text"]);
  EXPECT_TRUE(all[5]["text"] == "yes" || all[5]["text"] == "no") << all[5];
  EXPECT_TRUE(all[6]["text"] == "\"left\"" || all[6]["text"] == "\"right\"") << all[6];
  EXPECT_EQ(all[5]["stop"], "eos");
  EXPECT_GT(all[7]["n_prompt"], all[1]["n_prompt"]);  // with its turns
  EXPECT_THAT(o.out, HasSubstr(": line 7: unknown option \"surprise\", ignored"));
  EXPECT_EQ(all[8]["text"], all[9]["text"]);  // line 8 has the seed 100 + 7
  const std::string text = all[1]["text"];
  ASSERT_FALSE(text.empty());
  // A stop text ends the answer before it.
  test::write_file(directory_.path("stop.jsonl"), Json{{"prompt", "a b"}, {"stop", text}}.dump() + "\n");
  const Outcome stopped = batch("-n 9 -i " + directory_.path("stop.jsonl") + " 2>/dev/null");
  EXPECT_EQ(parsed(stopped.out)[1]["text"], "");
  EXPECT_EQ(parsed(stopped.out)[1]["stop"], "stop");
}

TEST_F(BatchCommand, ARerunContinuesAfterAKillAtAnyMoment) {
  constexpr int kLines = 1500;
  write_prompts(kLines);
  ASSERT_EQ(
      batch("-i " + input_ + " -o " + directory_.path("whole.jsonl") + " -np 1 -n 25 2>/dev/null").exit_code,
      0);
  const std::map<int64_t, Json> expected = parsed(file_bytes(directory_.path("whole.jsonl")));
  ASSERT_EQ(expected.size(), static_cast<size_t>(kLines));
  // With -np 1 the answers are bit-identical; with more, only their number and ids are.
  for (const char* parallel : {"1", "5"}) {
    test::write_file(output_, "");
    int n_kills = 0;
    for (int tries = 1;; ++tries) {
      ASSERT_LT(tries, 400);
      // Wait longer each time, so that the test ends even on a slow machine.
      const std::string seconds = std::to_string(0.02 + 0.004 * tries + 0.001 * (tries * 7 % 5));
      const Outcome o =
          batch(in_out_ + "-n 25 -np " + parallel + " 2>/dev/null", "timeout -s KILL " + seconds);
      if (o.exit_code == 0) break;
      ++n_kills;
    }
    EXPECT_GT(n_kills, 0);
    const std::map<int64_t, Json> all = answers();
    if (parallel == std::string("1")) {
      EXPECT_EQ(all, expected);
    } else {
      for (const auto& [index, json] : expected) EXPECT_EQ(all.at(index)["id"], json["id"]);
      EXPECT_EQ(all.size(), expected.size());
    }
  }
}

TEST_F(BatchCommand, AnInterruptKeepsFinishedAnswers) {
  Outcome o;
  for (int seconds = 1; seconds <= 16 && o.out.empty();
       seconds *= 2) {  // a busy machine needs longer to start
    const std::string prompts = R"(yes '{"prompt": "a b"}' | )";
    o = batch("-o " + output_ + " -n 30 -np 4 2>&1",
              prompts + "timeout --preserve-status -s INT " + std::to_string(seconds));
  }
  EXPECT_EQ(o.exit_code, 130);
  EXPECT_THAT(o.out, HasSubstr("rerun the same command"));
  EXPECT_THAT(o.out, testing::Not(HasSubstr("error")));
  const std::map<int64_t, Json> all = answers();
  EXPECT_GT(all.size(), 0u);
  for (const auto& [index, json] : all) EXPECT_TRUE(json.contains("text")) << index;
}

TEST_F(BatchCommand, AnIncompleteLineIsDoneAgain) {
  write_prompts(6);
  ASSERT_EQ(batch(in_out_ + "-np 1 -n 5 2>/dev/null").exit_code, 0);
  const std::string whole = file_bytes(output_);
  const std::vector<std::string> lines = lines_of(whole);
  const size_t last = whole.size() - lines.back().size() - 1;
  for (size_t n = last; n < whole.size(); n += 3) {
    test::write_file(output_, whole.substr(0, n));
    ASSERT_EQ(batch(in_out_ + "-np 1 -n 5 2>/dev/null").exit_code, 0);
    EXPECT_EQ(file_bytes(output_), whole) << n;
  }
}

TEST_F(BatchCommand, NeverModifiesAFileWithOtherContents) {
  write_prompts(2);
  for (const std::string text :
       {"my diary\n", "my diary", "{\"prompt\": \"a\"}\n", "{\"index\": \"1\", \"text\": \"a\"}\n",
        "{\"index\": 1}\n", "\n", "{\"index\":1,\"text\":\"a\"}\nand then\n",
        "{\"index\":-1,\"text\":\"a\"}\n", "{\"index\":1,\"text\":\"a\",\"id\":[[1]]}\n"}) {
    test::write_file(output_, text);
    const Outcome o = batch(in_out_ + "-n 2 2>&1");
    EXPECT_EQ(o.exit_code, 3) << text;
    EXPECT_THAT(o.out, HasSubstr("is not an answer of tandem batch"));
    EXPECT_EQ(file_bytes(output_), text);
  }
  const std::string prompts = file_bytes(input_);
  EXPECT_EQ(batch("-i " + input_ + " -o " + input_ + " 2>&1").exit_code, 3);
  EXPECT_EQ(file_bytes(input_), prompts);
}

TEST_F(BatchCommand, DetectsAnswersOfAnotherInput) {
  write_prompts(3);
  ASSERT_EQ(batch(in_out_ + "-n 2 2>/dev/null").exit_code, 0);
  test::write_file(input_, "{\"prompt\": \"new\", \"id\": \"p0\"}\n" + file_bytes(input_));
  const std::string before = file_bytes(output_);
  const Outcome o = batch(in_out_ + "-n 2 2>&1");
  EXPECT_EQ(o.exit_code, 3);
  EXPECT_THAT(o.out, HasSubstr("line 1 and the existing answer to line 1 have different ids"));
  EXPECT_EQ(file_bytes(output_), before);
}

TEST_F(BatchCommand, ReportsInvalidFiles) {
  write_prompts(1);
  const Outcome no_input = batch("-i " + directory_.path("none") + " -o " + output_ + " 2>&1");
  EXPECT_EQ(no_input.exit_code, 5);
  EXPECT_FALSE(std::ifstream(output_).good());
  EXPECT_EQ(batch("-i " + input_ + " -o " + directory_.path("no/such/folder") + " 2>&1").exit_code, 5);
  EXPECT_EQ(batch("-i " + directory_.path("") + " -o " + output_ + " 2>&1").exit_code, 5);
  EXPECT_EQ(batch("-n 2 -i " + input_ + " -o /dev/full 2>&1").exit_code, 5);
  EXPECT_EQ(batch(in_out_ + "-np 0 2>&1").exit_code, 2);
  EXPECT_EQ(batch(in_out_ + "-np 2000000000 2>&1").exit_code, 2);
  EXPECT_EQ(batch(in_out_ + "-l 999999+1 2>&1").exit_code, 2);
  const Outcome locked =
      shell("flock " + output_ + " sh -c \"", "batch -m " + model_ + " " + in_out_ + "\" 2>&1");
  EXPECT_EQ(locked.exit_code, 5);
  EXPECT_THAT(locked.out, HasSubstr("another tandem batch is writing it"));
}

// batch gives the same texts as run, for any -np.
TEST_F(BatchCommand, StoriesMatchTheRunCommand) {
  std::string text;
  std::vector<std::string> prompts;
  for (const char* who : {"cat", "dog", "girl", "boy", "bird", "tree", "frog"}) {
    prompts.push_back(std::string("Once upon a time, there was a ") + who);
    text += Json{{"prompt", prompts.back()}}.dump() + "\n";
  }
  test::write_file(input_, text);
  // With AVX-512 and AMX, steps of few and of many tokens sum in another order, which may decide between two words that are
  // about as likely.
  const cpu::Isa isa = std::min(cpu::best_isa(), cpu::Isa::avx2);
  const std::string how =
      " -m " + test::demo_model() + " -t 1 --temp 0 -n 40 --isa " + std::string(cpu::isa_name(isa)) + " ";
  std::vector<std::string> expected;
  for (const std::string& prompt : prompts) {
    expected.push_back(shell("", "run" + how + "--no-display-prompt -p '" + prompt + "' 2>/dev/null").out);
    EXPECT_GT(expected.back().size(), 40u);
  }
  for (const char* parallel : {"1", "3", "8"}) {
    const Outcome o = shell("", "batch" + how + "-i " + input_ + " -np " + parallel + " 2>/dev/null");
    std::map<int64_t, Json> all = parsed(o.out);
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(all[static_cast<int64_t>(i) + 1]["text"].get<std::string>() + "\n", expected[i]) << parallel;
    }
  }
}

}  // namespace
}  // namespace tandem
