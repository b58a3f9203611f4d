// What a model or a file says never controls the terminal; in a pipe it stays as it is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gguf/writer.h"
#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/terminal.h"
#include "support/tiny_model.h"

namespace tandem {
namespace {

using test::Terminal;
using testing::HasSubstr;
using testing::Not;

const std::string kTitle = "\x1b]0;owned\x07";  // sets the window's title
const std::string kC1 =
    "\xc2\x9b"
    "2J";  // the same as ESC [ 2 J, in eight bits

class TerminalEscapes : public testing::Test {
 protected:
  void SetUp() override {
    TANDEM_NEED_BINARY();
    test::tiny_llama().write(path("tiny.gguf"));
    test::write_file(path("hostile.gbnf"), "root ::= \"x\\x1B]0;owned\\x07\\u009B2Jy\"\n");
    test::write_file(path("prompt.txt"), "ask " + kTitle + kC1 + " end\r\nmore");
    test::write_file(path("hostile.jinja"), "hello " + kTitle + kC1 + "{{ messages[0].content }}");
    test::write_file(path("messages.json"), R"([{"role": "user", "content": "\u001b[31mhi"}])");
    test::write_file(path("requests.jsonl"),
                     R"({"prompt": "a", "n_predict": 30, "grammar": "root ::= \"x\u009B2J\""})"
                     "\n");
    GgufWriter writer(path("hostile.gguf"));
    writer.metadata().set("general.architecture", Value("llama"));
    writer.metadata().set("general.name", Value("m" + kTitle + kC1));
    writer.finish();
  }

  std::string path(const std::string& name) const { return directory_.path(name); }

  // All that the program writes on a terminal.
  std::string on_terminal(const std::string& arguments) const {
    test::TerminalOptions options;
    options.environment = {"TERM=xterm", "NO_COLOR=1"};
    options.columns = 200;
    const std::string line = "cd '" + path("") + "' && exec '" + test::binary_path() + "' " + arguments;
    Terminal t({"/bin/sh", "-c", line}, options);
    t.wait_for_exit();
    return t.seen() + t.rest(0);
  }
  test::Outcome in_pipe(const std::string& arguments) const {
    return test::shell("cd '" + path("") + "' &&", arguments);
  }

  test::TempDir directory_;
};

const char* const kSpeaking[] = {
    "run tiny.gguf -p a -n 30 --temp 0 -t 1 --grammar-file hostile.gbnf --simple-io 2>/dev/null",
    "run tiny.gguf -f prompt.txt -n 1 -t 1 --simple-io 2>/dev/null",
    "template --file hostile.jinja -i messages.json",
    "tokenize -m tiny.gguf -f prompt.txt",
    "inspect hostile.gguf",
};

TEST_F(TerminalEscapes, AreNotSentToATerminal) {
  for (const char* arguments : kSpeaking) {
    const std::string seen = on_terminal(arguments);
    EXPECT_THAT(seen, Not(HasSubstr("\x1b"))) << arguments;
    EXPECT_THAT(seen, Not(HasSubstr("\x07"))) << arguments;
    EXPECT_THAT(seen, Not(HasSubstr("\xc2\x9b"))) << arguments;
    EXPECT_FALSE(seen.empty()) << arguments;
  }
}

TEST_F(TerminalEscapes, AreReplacedAndTheRestIsShown) {
  EXPECT_THAT(on_terminal(kSpeaking[0]), HasSubstr("x\xef\xbf\xbd]0;owned\xef\xbf\xbd\xef\xbf\xbd"
                                                   "2Jy"));
  const std::string prompt = on_terminal(kSpeaking[1]);
  EXPECT_THAT(prompt, HasSubstr("ask \xef\xbf\xbd]0;owned\xef\xbf\xbd"));
  EXPECT_THAT(prompt, HasSubstr(" end\r"));  // a line break of DOS is one
  EXPECT_THAT(prompt, HasSubstr("\nmore"));
}

// JSON escapes control characters below 0x20, and not those from U+0080 on.
TEST_F(TerminalEscapes, AreNotInJsonOnATerminal) {
  for (const char* arguments :
       {"run tiny.gguf -p a -n 30 --temp 0 -t 1 --grammar-file hostile.gbnf --json 2>/dev/null",
        "batch -m tiny.gguf -i requests.jsonl -o - -t 1 --temp 0 2>/dev/null",
        "inspect --json hostile.gguf"}) {
    EXPECT_THAT(on_terminal(arguments), Not(HasSubstr("\xc2\x9b"))) << arguments;
    EXPECT_THAT(in_pipe(arguments).out, HasSubstr("\xc2\x9b")) << arguments;
  }
}

TEST_F(TerminalEscapes, AreNotInMessagesAboutAFile) {
  test::write_file(path("bad.jinja"), "{% " + kTitle + kC1 + " %}");
  test::write_file(path("bad.gbnf"), "root ::= " + kTitle + kC1 + "\n");
  test::write_file(path("bad.json"), "{\"" + kTitle + kC1 + "\": ");
  for (const char* arguments :
       {"template --file bad.jinja -i messages.json", "template --file hostile.jinja -i bad.json",
        "run tiny.gguf -p a -n 1 --grammar-file bad.gbnf", "run hostile.gguf -p a -n 1 -v",
        "chat -m hostile.gguf -p a -n 1 -v"}) {
    const std::string seen = on_terminal(arguments);
    EXPECT_THAT(seen, HasSubstr("error")) << arguments;
    EXPECT_THAT(seen, Not(HasSubstr("\x1b]"))) << arguments;
    EXPECT_THAT(seen, Not(HasSubstr("\xc2\x9b"))) << arguments;
  }
}

TEST_F(TerminalEscapes, StayAsTheyAreInAPipe) {
  EXPECT_EQ(in_pipe(kSpeaking[0]).out, "ax" + kTitle + kC1 + "y\n");
  EXPECT_THAT(in_pipe(kSpeaking[1]).out, testing::StartsWith("ask " + kTitle + kC1 + " end\r\nmore"));
  EXPECT_EQ(in_pipe(kSpeaking[2]).out, "hello " + kTitle + kC1 + "\x1b[31mhi");
}

}  // namespace
}  // namespace tandem
