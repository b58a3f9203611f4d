// --spec and -md: the same text on stdout, what they brought in the log, and what cannot be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/gguf_bytes.h"
#include "support/hf_folder.h"
#include "support/process.h"
#include "support/tiny_model.h"
#include "support/trained_model.h"

namespace tandem {
namespace {

using test::Outcome;
using test::shell;
using testing::HasSubstr;
using testing::Not;

class SpeculationCommand : public testing::Test {
 protected:
  void SetUp() override {
    TANDEM_NEED_BINARY();
    test::write_demo_f32(demo_);  // near-ties of Q8_0 could go either way
  }
  Outcome run(const std::string& arguments) const {
    return shell("", "run -m " + demo_ + " -t 2 --temp 0 -n 120 --ignore-eos " + arguments +
                         " -p 'Once upon a time there was a cat' 2>&1");
  }
  // What is printed before the messages.
  static std::string text_of(const Outcome& o) { return o.out.substr(0, o.out.find("\ntandem: prompt")); }
  static std::string speculation_of(const Outcome& o) {
    const size_t at = o.out.find("speculation: ");
    return at == std::string::npos ? "" : o.out.substr(at, o.out.find('\n', at) - at);
  }

  test::TempDir directory_;
  std::string demo_ = directory_.path("demo.gguf");
};

TEST_F(SpeculationCommand, TheTextIsTheSame) {
  const Outcome plain = run("");
  ASSERT_EQ(plain.exit_code, 0);
  ASSERT_GT(text_of(plain).size(), 200u);
  EXPECT_EQ(speculation_of(plain), "");
  for (const std::string& how :
       std::vector<std::string>{"--spec ngram", "-md " + demo_, "--spec none", "--no-sandbox --spec ngram",
                                "-md " + demo_ + " --draft-max 4 -cd 256"}) {
    const Outcome o = run(how);
    EXPECT_EQ(o.exit_code, 0) << how << o.out;
    EXPECT_EQ(text_of(o), text_of(plain)) << how;
  }
}

// A text of one token for ever is guessed right; how many guesses are made depends on the clock.
TEST_F(SpeculationCommand, SaysWhatItBrought) {
  const std::string how = "--spec ngram --logit-bias 40+100000 -n 300 ";
  const Outcome o = run(how);
  EXPECT_THAT(speculation_of(o),
              testing::MatchesRegex("speculation: [0-9]+ of [0-9]+ guesses right, [0-9.]+x as fast"));
  const Outcome events = run(how + "--json");
  ASSERT_EQ(events.exit_code, 0);
  const size_t at = events.out.find("{\"event\":\"end\"");
  ASSERT_NE(at, std::string::npos) << events.out;
  const auto end = nlohmann::json::parse(events.out.substr(at, events.out.find('\n', at) - at));
  EXPECT_GT(end["n_guessed_right"], 0);
  EXPECT_GE(end["n_guessed"], end["n_guessed_right"]);
}

TEST_F(SpeculationCommand, WhatCannotBe) {
  test::tiny_llama().write(directory_.path("other.gguf"));
  const Outcome other = run("-md " + directory_.path("other.gguf"));
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.out, HasSubstr("other.gguf: cannot guess for "));
  EXPECT_EQ(run("--spec model").exit_code, 2);
  EXPECT_THAT(run("--spec model").out, HasSubstr("name it with -md"));
  EXPECT_EQ(run("--spec ngram -md x.gguf").exit_code, 2);
  EXPECT_EQ(run("--spec often").exit_code, 2);
  EXPECT_THAT(run("--spec often").out, HasSubstr("needed none, ngram, mtp or model"));
  const Outcome no_layer = run("--spec mtp");
  EXPECT_EQ(no_layer.exit_code, 2);
  EXPECT_THAT(no_layer.out, HasSubstr("demo.gguf: the file has no MTP layers"));
  EXPECT_EQ(run("--spec ngram --draft-max 65").exit_code, 2);
  EXPECT_EQ(run("--spec ngram --draft-max 0").exit_code, 2);
  const Outcome missing = run("-md " + directory_.path("none.gguf"));
  EXPECT_EQ(missing.exit_code, 5);
  EXPECT_THAT(missing.out, HasSubstr("none.gguf"));
}

// By the MTP layer of the file itself, in a chat too.
TEST_F(SpeculationCommand, AnMtpLayerKeepsTheText) {
  test::HfFolder folder = test::family_folder(test::load_family("glm4_moe"));
  folder.tokenizer_config["chat_template"] = "{% for m in messages %}{{ m.content }}{% endfor %}";
  folder.write(directory_.path("hf"));
  const std::string path = directory_.path("glm.gguf");
  ASSERT_EQ(
      shell("", "convert " + directory_.path("hf") + " --mtp --outtype f32 -o " + path + " 2>&1").exit_code,
      0);
  for (const std::string& command :
       {"run -m " + path + " --ignore-eos -n 80 -p 'a b c d'", "chat -m " + path + " -n 60 -p 'a b c d'"}) {
    const std::string how = command + " -t 1 --temp 0 -c 256 -ctk f32 -ctv f32 ";
    const Outcome plain = shell("", how + "2>/dev/null"), mtp = shell("", how + "--spec mtp 2>/dev/null");
    ASSERT_EQ(plain.exit_code, 0);
    EXPECT_EQ(mtp.exit_code, 0);
    EXPECT_GT(plain.out.size(), 20u);
    EXPECT_EQ(mtp.out, plain.out);
    const Outcome events = shell("", how + "--spec mtp --json 2>&1");
    EXPECT_EQ(events.exit_code, 0) << events.out;
  }
}

// A layer that guesses one token with certainty wherever a number has the right sign, and a text of that token for ever.
TEST_F(SpeculationCommand, GuessesOfAnMtpLayerAreChecked) {
  test::HfFolder folder = test::family_folder(test::load_family("glm4_moe"));
  test::HfTensor& head = folder.tensors.at("model.layers.3.shared_head.head.weight");
  head.bytes.assign(head.bytes.size(), '\0');
  const auto row = static_cast<size_t>(40 * head.shape[1] * 2);  // BF16
  head.bytes[row] = '\x80', head.bytes[row + 1] = '\x42';        // 64
  folder.write(directory_.path("hf"));
  const std::string path = directory_.path("glm.gguf");
  ASSERT_EQ(shell("", "convert " + directory_.path("hf") + " --outtype f32 -o " + path + " 2>&1").exit_code,
            0);
  const Outcome o =
      shell("", "run -m " + path +
                    " -t 1 -c 512 --temp 0 -n 300 --ignore-eos --logit-bias 40+100000 --spec mtp "
                    "--json -p abc 2>&1");
  ASSERT_EQ(o.exit_code, 0) << o.out;
  const size_t at = o.out.find("{\"event\":\"end\"");
  ASSERT_NE(at, std::string::npos) << o.out;
  const auto end = nlohmann::json::parse(o.out.substr(at, o.out.find('\n', at) - at));
  EXPECT_GT(end["n_guessed_right"], 0);
}

TEST_F(SpeculationCommand, ConvertSaysThatThereIsNoMtpLayer) {
  test::family_folder(test::load_family("qwen3")).write(directory_.path("hf"));
  const Outcome o =
      shell("", "convert " + directory_.path("hf") + " --mtp -o " + directory_.path("x.gguf") + " 2>&1");
  EXPECT_EQ(o.exit_code, 2);
  EXPECT_THAT(o.out, HasSubstr("no MTP layers that can be converted"));
}

TEST_F(SpeculationCommand, ChatKeepsItsAnswers) {
  test::TinyModel tiny = test::tiny_llama();
  add_chat_template(tiny);
  tiny.write(directory_.path("chat.gguf"));
  const auto chat = [&](const std::string& how) {
    return shell("", "chat -m " + directory_.path("chat.gguf") +
                         " -t 1 --temp 0 -c 256 -n 60 -p 'abc abc abc' " + how + " 2>/dev/null");
  };
  const Outcome plain = chat("");
  ASSERT_EQ(plain.exit_code, 0);
  EXPECT_EQ(chat("--spec ngram").out, plain.out);
  EXPECT_EQ(chat("-md " + directory_.path("chat.gguf")).out, plain.out);
}

}  // namespace
}  // namespace tandem
