// What a person sees of tandem chat: colors, and a prompt that stays one in a window that changes.
#include "support/chat_terminal.h"

namespace tandem {
namespace {

using testing::HasSubstr;
using testing::Not;
using namespace test;

int n_prompts(const Screen& screen) {
  int n = 0;
  for (const std::string& line : screen.lines()) n += line.starts_with(">") ? 1 : 0;
  return n;
}

bool prompt_waits(const Screen& s) {
  return s.row(s.cursor_row()).starts_with(">") && s.cursor_column() >= 2;
}

class ChatScreen : public ChatTerminal {
 protected:
  // Everything on the screen but the prompt's mark and dim notes has the terminal's own color.
  static void expect_no_color(const Screen& screen, const std::string& text) {
    const int row = screen.row_with(text);
    ASSERT_GE(row, 0) << screen.text();
    const auto begin = static_cast<int>(screen.row(row).find(text));
    for (int i = 0; i < static_cast<int>(text.size()); ++i)
      EXPECT_TRUE(screen.cell(row, begin + i).plain()) << text << " " << i;
  }
};

TEST_F(ChatScreen, OnlyThePromptsMarkHasItsColor) {
  const auto t = start({"-n", "8"});
  ASSERT_TRUE(t->wait_for_screen(prompt_waits)) << t->screen().text();
  t->type("hello there");
  ASSERT_TRUE(t->wait_for_row("> hello there"));
  EXPECT_EQ(t->screen().cell(t->screen().cursor_row(), 0).color, 2);
  expect_no_color(t->screen(), " hello there");
  t->type(kEnter);
  ASSERT_TRUE(t->wait_for_row("answer 8 tokens")) << t->screen().text();
  const int answer = t->screen().row_with("> hello there") + 1;
  for (int column = 0; column < 8; ++column) EXPECT_TRUE(t->screen().cell(answer, column).plain()) << column;
}

// What the shell writes afterwards has no color, however the chat ends.
TEST_F(ChatScreen, NoColorOutlivesTheChat) {
  const std::vector<std::string> ways = {kCtrlD, kCtrlC + kCtrlC, "/exit" + kEnter,
                                         "typed" + kCtrlC + kCtrlC};
  for (const std::string& way : ways) {
    const auto t = start_in_shell({"-n", "8"});
    ASSERT_TRUE(t->wait_for_screen(prompt_waits)) << t->screen().text();
    for (const char key : way) {
      t->type(std::string(1, key));
      t->rest(20);
    }
    t->type("echo the'' end" + kEnter);
    ASSERT_TRUE(t->wait_for_row("the end")) << t->screen().text();
    expect_no_color(t->screen(), "the end");
  }
}

TEST_F(ChatScreen, SigtermRestoresTheTerminal) {
  const auto t = start({"-c", "60000", "--ignore-eos"});
  ASSERT_TRUE(t->wait_for_screen(prompt_waits));
  kill(t->child(), SIGTERM);
  EXPECT_EQ(t->wait_for_exit(), 128 + SIGTERM);
  EXPECT_TRUE(t->echoes());
}

TEST_F(ChatScreen, OnePromptAfterEveryNewSize) {
  const auto t = start({"-n", "4"});
  ASSERT_TRUE(t->wait_for_screen(prompt_waits));
  t->type("some text");
  ASSERT_TRUE(t->wait_for_row("> some text"));
  for (const auto& [rows, columns] : {std::pair(20, 60), {30, 100}, {10, 40}, {24, 80}}) {
    t->resize(rows, columns);
    t->rest(300);
    EXPECT_EQ(n_prompts(t->screen()), 1) << t->screen().text();
    EXPECT_EQ(t->screen().row(t->screen().cursor_row()), "> some text");
    EXPECT_EQ(t->screen().cursor_column(), 11);
  }
  t->type(kLeft + "X" + kEnter);
  ASSERT_TRUE(t->wait_for_row("answer 4"));
  EXPECT_EQ(said(*t), "some texXt");
}

// xterm cuts lines that no longer fit, as the test's screen does.
TEST_F(ChatScreen, ALongLineInANarrowerWindow) {
  const auto t = start({"-n", "4"}, with({"XTERM_VERSION=1"}));
  ASSERT_TRUE(t->wait_for_screen(prompt_waits));
  t->type("a line that is longer than the window will be");
  ASSERT_TRUE(t->wait_for_row("will be"));
  t->resize(12, 20);
  ASSERT_TRUE(t->wait_for_row("> a line that is lon")) << t->screen().text();
  EXPECT_EQ(n_prompts(t->screen()), 1) << t->screen().text();
  t->resize(12, 60);
  ASSERT_TRUE(t->wait_for_row("> a line that is longer than the window will be")) << t->screen().text();
  EXPECT_EQ(n_prompts(t->screen()), 1) << t->screen().text();
}

TEST_F(ChatScreen, ANewSizeDuringAnAnswer) {
  const auto t = start({"-c", "60000", "--ignore-eos"});
  ASSERT_TRUE(t->wait_for_screen(prompt_waits));
  t->type("go on" + kEnter);
  t->rest(100);
  t->resize(20, 60);
  t->rest(100);
  t->type(kCtrlC);
  ASSERT_TRUE(t->wait_for_row("interrupted"));
  ASSERT_TRUE(t->wait_for_screen(prompt_waits));
  t->rest(400);
  EXPECT_EQ(t->screen().row(t->screen().cursor_row()), ">") << t->screen().text();
}

TEST_F(ChatScreen, CtrlZAndBackAtThePrompt) {
  const auto t = start_in_shell({"-n", "4"});
  ASSERT_TRUE(t->wait_for_screen(prompt_waits)) << t->screen().text();
  t->type("some text");
  ASSERT_TRUE(t->wait_for_row("> some text"));
  for (int i = 0; i < 2; ++i) {
    t->type(kCtrlZ);
    ASSERT_TRUE(t->wait_for_screen([](const Screen& s) { return s.row(s.cursor_row()) == "$"; }))
        << t->screen().text();
    EXPECT_EQ(n_prompts(t->screen()), 0) << t->screen().text();
    t->type("fg" + kEnter);
    ASSERT_TRUE(t->wait_for_screen(prompt_waits)) << t->screen().text();
    t->rest(500);
    EXPECT_EQ(n_prompts(t->screen()), 1) << t->screen().text();
    EXPECT_EQ(t->screen().row(t->screen().cursor_row()), "> some text");
  }
  t->type(kLeft + "X" + kEnter);
  ASSERT_TRUE(t->wait_for_row("answer 4"));
  EXPECT_EQ(said(*t), "some texXt");
}

TEST_F(ChatScreen, CtrlZAndBackDuringAnAnswer) {
  const auto t = start_in_shell({"-c", "60000", "--ignore-eos"});
  ASSERT_TRUE(t->wait_for_screen(prompt_waits));
  t->type("go on" + kEnter);
  t->rest(100);
  t->type(kCtrlZ);
  ASSERT_TRUE(t->wait_for_screen([](const Screen& s) { return s.row(s.cursor_row()) == "$"; }))
      << t->screen().text();
  t->type("fg" + kEnter);
  t->rest(100);
  t->type(kCtrlC);
  ASSERT_TRUE(t->wait_for_row("interrupted")) << t->screen().text();
  ASSERT_TRUE(t->wait_for_screen(prompt_waits));
  t->rest(400);
  EXPECT_EQ(t->screen().row(t->screen().cursor_row()), ">") << t->screen().text();
  EXPECT_FALSE(t->echoes());
}

TEST_F(ChatScreen, SimpleIoSendsNoControlSequence) {
  const auto t = start({"-n", "4", "--simple-io"});
  ASSERT_TRUE(t->wait_for_screen(prompt_waits));
  t->type("hello" + kLeft + "X" + kEnter);
  ASSERT_TRUE(t->wait_for("answer 4"));
  std::string all = t->seen();
  t->type(kCtrlD);
  EXPECT_EQ(t->wait_for_exit(), 0);
  all += t->rest(0);
  EXPECT_THAT(all, Not(HasSubstr("\033")));
}

}  // namespace
}  // namespace tandem
