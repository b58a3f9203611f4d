// What a person sees of tandem run: the prompt, its progress and the answer, in that order and one after the
// other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/terminal.h"
#include "support/tiny_model.h"

namespace tandem {
namespace {

using test::Screen;
using test::Terminal;
using testing::HasSubstr;
using testing::Not;

class RunTerminal : public testing::Test {
 protected:
  void SetUp() override {
    TANDEM_NEED_BINARY();
    path_ = directory_.path("tiny.gguf");
    test::tiny_llama().write(path_);
  }

  std::vector<std::string> command(const std::vector<std::string>& arguments) const {
    std::vector<std::string> argv = {test::binary_path(), "run", "-m", path_, "-s", "1", "-t", "1"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    return argv;
  }

  test::TerminalOptions environment(std::vector<std::string> more = {}) const {
    test::TerminalOptions options;
    options.columns = 120;
    options.environment = {"TERM=xterm", "NO_COLOR"};
    options.environment.insert(options.environment.end(), more.begin(), more.end());
    return options;
  }

  std::string long_prompt(size_t n_bytes) const {
    const std::string path = directory_.path("long.txt");
    std::string text = "Begin ";
    while (text.size() < n_bytes) text += "xyz ";
    std::ofstream(path) << text << "end";
    return path;
  }

  test::TempDir directory_;
  std::string path_;
};

TEST_F(RunTerminal, ThePromptStaysOnTheScreen) {
  const std::string words = "The prompt is as long as this, so it is read in more than one step.";
  const std::vector<std::vector<std::string>> environments = {{}, {"TERM=dumb"}, {"TERM"}, {"NO_COLOR=1"}};
  for (const auto& variables : environments) {
    Terminal t(command({"-p", words, "-n", "4", "-ub", "16"}), environment(variables));
    EXPECT_EQ(t.wait_for_exit(), 0);
    EXPECT_EQ(t.screen().count(words), 1) << t.screen().text();
    EXPECT_EQ(t.screen().count("reading the prompt"), 0) << t.screen().text();
  }
}

TEST_F(RunTerminal, StatisticsAreWrappedBetweenWords) {
  for (const int columns : {20, 33, 50, 71}) {
    test::TerminalOptions options = environment();
    options.columns = columns;
    Terminal t(command({"-p", "Once", "-n", "4"}), options);
    EXPECT_EQ(t.wait_for_exit(), 0);
    for (const char* word : {"tandem: ", "tokens", "generated", "stopped:", "reached;", "seed"}) {
      EXPECT_GE(t.screen().count(word), 1) << word << "\n" << t.screen().text();
    }
  }
}

TEST_F(RunTerminal, ThePromptStaysWithSimpleIoAndInAPipe) {
  const std::string words = "The prompt is as long as this, so it is read in more than one step.";
  {
    Terminal t(command({"-p", words, "-n", "4", "-ub", "16", "--simple-io"}), environment());
    EXPECT_EQ(t.wait_for_exit(), 0);
    EXPECT_EQ(t.screen().count(words), 1) << t.screen().text();
    EXPECT_THAT(t.rest(0), Not(HasSubstr("\033")));
  }
  std::string line;
  for (const std::string& word : command({"-p", words, "-n", "4", "-ub", "16", "-co", "on"}))
    line += "'" + word + "' ";
  Terminal t({"/bin/sh", "-c", line + "| cat"}, environment());
  EXPECT_EQ(t.wait_for_exit(), 0);
  EXPECT_EQ(t.screen().count(words), 1) << t.screen().text();
  EXPECT_EQ(t.screen().cell(t.screen().row_with(words), 0).color, 3);
}

TEST_F(RunTerminal, AnEmptyTerminalShowsProgressFromTheStart) {
  Terminal t(command({"-f", long_prompt(20000), "-n", "1", "-c", "40000", "-ub", "8192"}), environment());
  ASSERT_TRUE(t.wait_for_row("] 0% of ")) << t.screen().text();
  EXPECT_EQ(t.screen().count("Begin"), 0);
  EXPECT_EQ(t.wait_for_exit(300000), 0);  // a sanitizer takes its time
  EXPECT_EQ(t.screen().count("Begin"), 1);
  EXPECT_EQ(t.screen().count("reading the prompt"), 0) << t.screen().text();
}

TEST_F(RunTerminal, CtrlCInALongPromptIsAnsweredAtOnce) {
  Terminal t(command({"-f", long_prompt(30000), "-n", "1", "-c", "60000", "-b", "16384", "-ub", "16384"}),
             environment());
  ASSERT_TRUE(t.wait_for_row("reading the prompt")) << t.screen().text();
  t.type("\x03");
  ASSERT_TRUE(t.wait_for_row("stopping after this micro-batch")) << t.screen().text();
  t.type("\x03");
  EXPECT_EQ(t.wait_for_exit(), 130);
}

TEST_F(RunTerminal, CtrlCBetweenMicroBatchesEndsIt) {
  Terminal t(command({"-f", long_prompt(30000), "-n", "1", "-c", "60000", "-ub", "64"}), environment());
  ASSERT_TRUE(t.wait_for_row("reading the prompt")) << t.screen().text();
  t.type("\x03");
  EXPECT_EQ(t.wait_for_exit(), 130);
  EXPECT_EQ(t.screen().count("reading the prompt"), 0) << t.screen().text();
  EXPECT_THAT(t.screen().text(), HasSubstr("interrupted"));
}

}  // namespace
}  // namespace tandem
